"""Logs calls of publish that failed without an exception, because tickets may be dropped."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future

from weightwire import _core

_log = logging.getLogger("weightwire")

PENDING_STAGES = ("reading", "queued", "spooled", "uploading")
"""The stages of a ticket before its last."""


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
                if stage in PENDING_STAGES:
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
