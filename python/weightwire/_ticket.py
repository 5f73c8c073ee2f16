"""Ticket: the progress and the result of one call of publish."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field

from weightwire import _core
from weightwire._deadline import Deadline
from weightwire._failure_log import PENDING_STAGES, PublishCall
from weightwire._publisher_session import PublisherSession
from weightwire.errors import WaitTimeout, WeightwireError

ASYNC_WAIT_SECONDS = 0.5
"""A cancelled async wait keeps its thread for this long at most."""


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
        self._read = read
        self._call = PublishCall(read, step)
        self._session = session  # keeps the publisher at work
        self._step = step
        self._elements = elements
        session.failures.add(self._call)

    @property
    def stats(self) -> TicketStats:
        """A copy of what is known now."""
        if not self._read.done():
            return TicketStats("reading", None, self._step, 0, 0, self._elements)
        if (error := self._read.exception()) is not None:
            return TicketStats("failed", None, self._step, 0, 0, self._elements, error=str(error))
        return TicketStats(**self._read.result().look(), elements=self._elements)

    @property
    def version(self) -> int | None:
        """The version it makes; None if it was skipped, or while the weights are still being read."""
        return self.stats.version

    @property
    def done(self) -> bool:
        """Whether its stage is the last one."""
        return self.stats.stage not in PENDING_STAGES

    def wait_read(self, timeout: float | None = None) -> None:
        """Waits until the weights have been read and may change again. Returns at once unless they are read in the
        background. Raises if the read failed, and `WaitTimeout` after `timeout` seconds."""
        self._session.background.timed(lambda: self._wait_read(timeout))

    def _wait_read(self, timeout: float | None) -> None:
        if not wait_for([self._read], timeout).done:
            raise self._late(timeout)
        self._session.background.mark_seen(self._read)  # its error is raised here, and not again by the publisher
        self._read.result()

    def wait(self, timeout: float | None = None) -> TicketStats:
        """Waits until the version is committed. Raises if it failed, and `WaitTimeout` after `timeout` seconds."""
        deadline = Deadline(timeout)
        self._wait_read(timeout)
        try:
            over = self._read.result().wait(deadline.left_or_none)
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
            except WaitTimeout:
                if deadline.is_over:
                    raise self._late(timeout) from None

    def _late(self, timeout: float | None) -> WaitTimeout:
        stats = self.stats
        why = f": {stats.error}" if stats.error else ""
        what = f"step {stats.step}" if stats.version is None else f"version {stats.version}"
        return WaitTimeout(f"{what} is still {stats.stage} after {timeout} seconds{why}")

    def __repr__(self) -> str:
        stats = self.stats
        return f"<Ticket of version {stats.version}, step {stats.step}: {stats.stage}>"
