"""Ticket: the progress and the result of one call of publish. FailureLog: the calls that failed and whose tickets were
dropped."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from weightwire import _core
from weightwire._deadline import Deadline
from weightwire.errors import WaitTimeoutError, WeightwireError

if TYPE_CHECKING:
    from weightwire._publisher_session import PublisherSession

_log = logging.getLogger("weightwire")
T = TypeVar("T")

ASYNC_WAIT_SECONDS = 0.5
"""A cancelled async wait keeps its thread for this long at most."""

_PENDING_STAGES = ("reading", "queued", "spooled", "uploading")
"""The stages of a ticket before its last."""


Stage = Literal["reading", "queued", "spooled", "uploading", "committed", "already_published", "skipped", "failed"]


@dataclass(frozen=True, kw_only=True)
class PublishStatus:
    """The progress of a call of publish at one moment. With several ranks, the sizes count this rank's part until the
    version is committed, and then all parts."""

    stage: Stage
    """"committed", "already_published", "skipped" (the next version covers it) and "failed" are the last ones."""
    version: int | None
    """None if there is none, or while the weights are still being read."""
    step: int
    delta_bytes: int | None
    """None if it is not known yet, or if there is no delta: the first version and a rebase are sent as an anchor."""
    anchor_bytes: int | None
    """Of a committed version without a delta: the size of its anchor."""
    changed_elements: int | None
    """Bytes of packed types. All of them in a version without a delta; None while the weights are still being read."""
    elements: int
    """Of all published tensors, tied ones once. `changed_elements` is a part of it."""
    stage_seconds: dict[str, float] = field(default_factory=dict)
    """From the moment when the weights had been read to each stage."""
    error: str | None = None
    """Why it failed, or why the last attempt did, which is repeated."""


class Ticket:
    """The result of one call of `Publisher.publish`, shaped like a `concurrent.futures.Future`. In an event loop,
    `await ticket` waits as `result` does. Safe to drop."""

    def __init__(self, read: Future[_core.Ticket], session: PublisherSession, step: int, elements: int) -> None:
        self._call = PublishCall(read, step)
        self._session = session  # keeps the publisher at work
        self._elements = elements
        session.failures.add(self._call)

    @property
    def status(self) -> PublishStatus:
        """A copy of what is known now."""
        read = self._call.read
        if read.done() and read.exception() is None:
            return PublishStatus(**read.result().look(), elements=self._elements)
        error = read.exception() if read.done() else None
        return PublishStatus(
            stage="reading" if error is None else "failed",
            version=None,
            step=self._call.step,
            delta_bytes=None,
            anchor_bytes=None,
            changed_elements=None,
            elements=self._elements,
            error=None if error is None else str(error),
        )

    @property
    def version(self) -> int | None:
        """The version it makes; None if it was skipped, or while the weights are still being read."""
        return self.status.version

    @property
    def step(self) -> int:
        """The step that it was published with."""
        return self._call.step

    def done(self) -> bool:
        """Whether its stage is the last one."""
        return self.status.stage not in _PENDING_STAGES

    def wait_read(self, timeout: float | None = None) -> None:
        """Waits until the weights have been read and may change again. Returns at once unless they are read in the
        background. Raises if the read failed, and `WaitTimeoutError` after `timeout` seconds."""

        def wait() -> None:
            self._wait_for_read(timeout)
            self._call.read.result()

        self._session.background.timed(wait)

    async def wait_read_async(self, timeout: float | None = None) -> None:
        """`wait_read` for an event loop."""
        await wait_in_slices(self.wait_read, timeout, self._late)

    def result(self, timeout: float | None = None) -> PublishStatus:
        """Waits until the version is committed. Raises if it failed, and `WaitTimeoutError` after `timeout` seconds."""
        error = self.exception(timeout)
        if error is not None:
            raise error
        return self.status

    async def result_async(self, timeout: float | None = None) -> PublishStatus:
        """`result` for an event loop; `await ticket` is the same without a timeout."""
        return await wait_in_slices(self.result, timeout, self._late)

    def __await__(self) -> Generator[Any, None, PublishStatus]:
        return self.result_async().__await__()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Waits as `result` does, and returns the error that it would raise; None if there is none. Raises
        `WaitTimeoutError` after `timeout` seconds."""
        deadline = Deadline(timeout)
        self._wait_for_read(timeout)
        if (error := self._call.read.exception()) is not None:
            return error
        try:
            over = self._call.read.result().wait(deadline.left_or_none)
        except WeightwireError as failure:
            self._call.raised = True
            return failure
        if not over:
            raise self._late(timeout)
        return None

    async def exception_async(self, timeout: float | None = None) -> BaseException | None:
        """`exception` for an event loop."""
        return await wait_in_slices(self.exception, timeout, self._late)

    def _wait_for_read(self, timeout: float | None) -> None:
        if not wait_for([self._call.read], timeout).done:
            raise self._late(timeout)
        self._session.background.mark_seen(self._call.read)  # its error is raised here, and not again by the publisher

    def _late(self, timeout: float | None) -> WaitTimeoutError:
        status = self.status
        why = f": {status.error}" if status.error else ""
        what = f"step {status.step}" if status.version is None else f"version {status.version}"
        return WaitTimeoutError(f"{what} is still {status.stage} after {timeout} seconds{why}")

    def __repr__(self) -> str:
        status = self.status
        return f"<Ticket of version {status.version}, step {status.step}: {status.stage}>"


async def wait_in_slices(
    wait: Callable[[float | None], T], timeout: float | None, late: Callable[[float | None], WaitTimeoutError]
) -> T:
    """Calls `wait` on a thread, for a short time again and again, so that a cancelled call ends its thread soon."""
    deadline = Deadline(timeout)
    while True:
        try:
            return await asyncio.to_thread(wait, deadline.left(ASYNC_WAIT_SECONDS))
        except WaitTimeoutError:
            if deadline.is_over:
                raise late(timeout) from None


class PublishCall:
    """One call of publish: the read of its weights, which gives the core's ticket."""

    def __init__(self, read: Future[_core.Ticket], step: int) -> None:
        self.read = read
        self.step = step
        self.raised = False
        """Whether its failure was raised to the user."""


class FailureLog:
    """The calls of publish whose result is not known yet. Thread safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: list[PublishCall] = []
        self._last_failed: PublishCall | None = None  # set while the last call that ended is one that failed

    def add(self, call: PublishCall) -> None:
        with self._lock:
            self._calls.append(call)

    def log_failures(self) -> None:
        """Logs the failures since the last time. They lose nothing, because the next version covers them."""
        with self._lock:
            while self._calls and self._calls[0].read.done():
                call = self._calls[0]
                stage, error = "failed", None
                if call.read.exception() is None:  # the thread that waits for the read raises it
                    known = call.read.result().look()
                    stage, error = known["stage"], known["error"]
                if stage in _PENDING_STAGES:
                    return
                self._calls.pop(0)
                self._last_failed = call if error is not None and stage == "failed" else None
                if self._last_failed is not None and not call.raised:
                    _log.warning("step %d was not published: %s", call.step, error)

    def raise_last(self) -> None:
        """Raises why the last version was not published, unless that was raised before."""
        self.log_failures()
        with self._lock:
            failed, self._last_failed = self._last_failed, None
        if failed is not None and not failed.raised:
            failed.raised = True
            failed.read.result().wait(0)
