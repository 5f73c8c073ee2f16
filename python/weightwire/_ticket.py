"""Ticket: the progress and the result of one call of publish. FailureLog: the calls that failed and whose tickets were
dropped."""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from weightwire import _core
from weightwire._deadline import Deadline
from weightwire.errors import WaitTimeoutError, WeightwireError

if TYPE_CHECKING:
    from weightwire._publisher_session import PublisherSession

_log = logging.getLogger("weightwire")

ASYNC_WAIT_SECONDS = 0.5
"""A cancelled async wait keeps its thread for this long at most."""

_PENDING_STAGES = ("reading", "queued", "spooled", "uploading")
"""The stages of a ticket before its last."""


@dataclass(frozen=True)
class TicketStats:
    """The current progress of a call of publish. With several ranks, the sizes count this rank's part until the version
    is committed, and then all parts."""

    stage: str
    """reading, queued, spooled, uploading, committed, already_published, skipped or failed."""
    version: int | None
    """None if there is none, or while the weights are still being read."""
    step: int
    bytes: int
    """Of the delta; 0 for a version that is an anchor only."""
    changed: int
    """Elements (bytes of packed types)."""
    elements: int = 0
    """Of all published tensors, tied ones once. `changed` is a part of it."""
    seconds: dict[str, float] = field(default_factory=dict)
    """From the moment when the weights had been read to each stage."""
    error: str | None = None
    """Why it failed, or why the last attempt did, which is repeated."""


class Ticket:
    """The result of one call of `Publisher.publish`. Safe to drop."""

    def __init__(self, read: Future[_core.Ticket], session: PublisherSession, step: int, elements: int) -> None:
        self._call = PublishCall(read, step)
        self._session = session  # keeps the publisher at work
        self._elements = elements
        session.failures.add(self._call)

    @property
    def stats(self) -> TicketStats:
        """A copy of what is known now."""
        if not self._call.read.done():
            return TicketStats("reading", None, self._call.step, 0, 0, self._elements)
        if (error := self._call.read.exception()) is not None:
            return TicketStats("failed", None, self._call.step, 0, 0, self._elements, error=str(error))
        return TicketStats(**self._call.read.result().look(), elements=self._elements)

    @property
    def version(self) -> int | None:
        """The version it makes; None if it was skipped, or while the weights are still being read."""
        return self.stats.version

    @property
    def done(self) -> bool:
        """Whether its stage is the last one."""
        return self.stats.stage not in _PENDING_STAGES

    def wait_read(self, timeout: float | None = None) -> None:
        """Waits until the weights have been read and may change again. Returns at once unless they are read in the
        background. Raises if the read failed, and `WaitTimeoutError` after `timeout` seconds."""
        self._session.background.timed(lambda: self._wait_read(timeout))

    def _wait_read(self, timeout: float | None) -> None:
        if not wait_for([self._call.read], timeout).done:
            raise self._late(timeout)
        self._session.background.mark_seen(self._call.read)  # its error is raised here, and not again by the publisher
        self._call.read.result()

    def wait(self, timeout: float | None = None) -> TicketStats:
        """Waits until the version is committed. Raises if it failed, and `WaitTimeoutError` after `timeout` seconds."""
        deadline = Deadline(timeout)
        self._wait_read(timeout)
        try:
            over = self._call.read.result().wait(deadline.left_or_none)
        except WeightwireError:
            self._call.raised = True
            raise
        if not over:
            raise self._late(timeout)
        return self.stats

    async def wait_async(self, timeout: float | None = None) -> TicketStats:
        """`wait` for an event loop."""
        deadline = Deadline(timeout)
        while True:
            try:
                return await asyncio.to_thread(self.wait, deadline.left(ASYNC_WAIT_SECONDS))
            except WaitTimeoutError:
                if deadline.is_over:
                    raise self._late(timeout) from None

    def _late(self, timeout: float | None) -> WaitTimeoutError:
        stats = self.stats
        why = f": {stats.error}" if stats.error else ""
        what = f"step {stats.step}" if stats.version is None else f"version {stats.version}"
        return WaitTimeoutError(f"{what} is still {stats.stage} after {timeout} seconds{why}")

    def __repr__(self) -> str:
        stats = self.stats
        return f"<Ticket of version {stats.version}, step {stats.step}: {stats.stage}>"


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
