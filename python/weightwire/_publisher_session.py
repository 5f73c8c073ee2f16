"""A core publisher and everything that must live as long as it works. It ends when neither the publisher nor a ticket
refers to it, or when the interpreter ends."""

from __future__ import annotations

import atexit
import logging
import os
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from weightwire import _core
from weightwire._background_read import BackgroundRead, StepGate
from weightwire._deadline import Deadline
from weightwire._examined_models import ExaminedModels
from weightwire._extra_files import ExtraFiles
from weightwire._forks import OwnerProcess
from weightwire._model_state import ModelState
from weightwire._publisher_options import PublisherArguments
from weightwire._rank_group import RankGroup
from weightwire._ticket import FailureLog

_log = logging.getLogger("weightwire")
_CLOSE_READ_SECONDS = 5.0
"""How long closing waits for a background read that still runs."""
_QUIET_EXIT_SECONDS = 2.0
"""How long the interpreter's exit is held up without a word."""


class PublisherSession:
    def __init__(self, run: str, arguments: PublisherArguments) -> None:
        self._extra_files = ExtraFiles()
        self.run = run
        self.state_dir = arguments.state_dir
        self.exit_timeout = arguments.exit_timeout
        self.ranks: RankGroup | None = None
        self.core: _core.Publisher | _core.RankPublisher
        try:
            if arguments.has_ranks:
                self.ranks = RankGroup(run, arguments, self._extra_files)
                self.core = self.ranks.core
            else:
                self.core = _core.Publisher(run, arguments.for_core(self._extra_files))
        except BaseException:
            self._extra_files.remove()
            raise
        self._process = OwnerProcess()
        self.background: BackgroundRead[_core.Ticket] = BackgroundRead()
        self.gate = None if arguments.optimizer is None else StepGate(arguments.optimizer, self.background)
        self.failures = FailureLog()
        self.models = ExaminedModels(arguments.dtype, arguments.lora, arguments.model)
        at_exit = _AtExit(self)
        end_ranks = None if self.ranks is None else self.ranks.finish
        self._end = weakref.finalize(
            self,
            _end,
            self.core,
            end_ranks,
            self._extra_files,
            run,
            arguments.state_dir,
            self._process,
            self.background,
            at_exit,
        )
        # After everything else that runs at exit was registered, and so before it.
        atexit.register(at_exit)
        self._at_exit = at_exit

    @property
    def is_fork(self) -> bool:
        """Whether this process is a fork, which has only a copy and must not end it."""
        return self._process.is_a_fork

    @property
    def is_closed(self) -> bool:
        return not self._end.alive

    @property
    def unsent(self) -> int:
        """How many versions are not in the bucket yet."""
        pending: int = self.core.status()["pending_versions"]
        return pending + self.background.is_reading

    @property
    def fate(self) -> str:
        """What closing now would do to unsent versions."""
        return _fate(self.core.status(), self.state_dir)

    def flush_for(self, timeout: float, reading: Future[_core.Ticket] | None) -> bool:
        """Waits for the read, and then until everything is in the bucket. Returns False on timeout."""
        deadline = Deadline(timeout)
        if reading is not None and not self.background.wait_finished(timeout, reading):
            return False
        return self.core.flush(deadline.left())

    def flush_at_exit(self) -> None:
        """Gives what is not sent some time, and never raises."""
        if self.is_closed or self.is_fork:
            return
        deadline = Deadline(self.exit_timeout)
        reading = self.background.reading
        try:
            if self.flush_for(deadline.left(_QUIET_EXIT_SECONDS), reading) or deadline.is_over:
                return
            _log.warning(
                "the publisher of %s was not closed: waiting up to %g s until it has sent what is left",
                self.run,
                self.exit_timeout,
            )
            self.flush_for(deadline.left(), reading)
        except BaseException as error:  # Ctrl-C too: whoever presses it wants to go
            _log.warning("the publisher of %s could not send everything: %s", self.run, error or type(error).__name__)

    def warn_of_unsent(self, when: str) -> None:
        """Logs what closing now leaves unsent, if anything."""
        if unsent := self.unsent:
            _log.warning(
                "%s of the publisher of %s %s not sent %s; %s", versions(unsent), self.run, was(unsent), when, self.fate
            )

    def close(self) -> None:
        """Ends at once. Does nothing if it is closed."""
        if self.ranks is not None:
            self.ranks.close()
        self._end.detach()
        atexit.unregister(self._at_exit)
        if self.gate is not None:
            self.gate.remove()
        self.background.wait_finished(_CLOSE_READ_SECONDS)
        self.core.close()
        self.background.join()
        self._extra_files.remove()

    def before_publish(self) -> None:
        """Waits for the previous read, and raises its error. Restores files that anchors need, and logs failures."""
        self.background.wait()
        self._extra_files.restore()
        self.failures.log_failures()

    def elements(self, state: ModelState) -> int:
        """The number of elements, of all ranks together."""
        if self.ranks is not None:
            return self.ranks.elements
        return state.prepared.elements

    def encode(self, state: ModelState, step: int, check: Callable[[], str | None] | None) -> _core.Ticket:
        """Compares, encodes and queues. The core calls `check` after the read, to learn whether the weights
        were written to during it."""
        return self.core.publish(state.prepared, step, check)


def _fate(status: dict[str, Any], state_dir: str | os.PathLike[str] | None) -> str:
    """What becomes of unsent versions when the core is closed."""
    held = -1 if status["version"] is None else status["version"]
    # A version without a delta is kept nowhere else until its anchor is complete, and later ones wait for it.
    anchor = status["anchor_in_progress"]
    waits_for_anchor = anchor is not None and anchor > held
    if state_dir is None:
        return "they are lost"
    if waits_for_anchor:
        return "they are lost, because a version that is sent as an anchor is not kept in state_dir"
    return f"they stay in {os.fspath(state_dir)}, and the next publisher with this state_dir= sends them"


def versions(count: int) -> str:
    return "1 version" if count == 1 else f"{count} versions"


def was(count: int) -> str:
    return "was" if count == 1 else "were"


class _AtExit:
    """Sends what is left when the interpreter ends, and does not keep the session alive until then."""

    def __init__(self, session: PublisherSession) -> None:
        self._session = weakref.ref(session)

    def __call__(self) -> None:
        session = self._session()
        if session is not None:
            session.flush_at_exit()


def _end(
    core: _core.Publisher | _core.RankPublisher,
    end_ranks: Callable[[], object] | None,
    extra_files: ExtraFiles,
    run: str,
    state_dir: str | os.PathLike[str] | None,
    process: OwnerProcess,
    background: BackgroundRead[_core.Ticket],
    at_exit: _AtExit,
) -> None:
    """Ends a session that was not closed.

    Leaves the hook of the optimizer in place, because this may run in the middle of the optimizer's step, while torch
    iterates over its hooks. Without a session the hook does nothing.
    """
    atexit.unregister(at_exit)
    if process.is_a_fork:
        return
    background.wait_finished(_CLOSE_READ_SECONDS)
    status = core.status()
    if unsent := status["pending_versions"] + background.is_reading:
        _log.warning(
            "the publisher of %s was not closed, and %s %s not sent; %s: use `with`, or call close()",
            run,
            versions(unsent),
            was(unsent),
            _fate(status, state_dir),
        )
    if end_ranks is not None:
        end_ranks()
    core.close()
    background.join()
    extra_files.remove()
