"""A core publisher and everything that must live as long as it works. It ends when neither the publisher nor a ticket
refers to it, or when the interpreter ends."""

from __future__ import annotations

import logging
import math
import weakref
from collections.abc import Callable

from weightwire import _core
from weightwire._background_read import BackgroundRead, StepGate
from weightwire._extra_files import ExtraFiles
from weightwire._forks import OwnerProcess
from weightwire._model_state import ModelState
from weightwire._publisher_options import PublisherOptions
from weightwire._rank_group import RankGroup
from weightwire._ticket import FailureLog

_log = logging.getLogger("weightwire")
_CLOSE_READ_SECONDS = 5.0
"""How long closing waits for a background read that still runs."""


class PublisherSession:
    def __init__(self, run: str, options: PublisherOptions) -> None:
        self._extra_files = ExtraFiles()
        self.ranks: RankGroup | None = None
        self.core: _core.Publisher | _core.RankPublisher
        try:
            if options.has_ranks:
                self.ranks = RankGroup(run, options, self._extra_files)
                self.core = self.ranks.core
            else:
                self.core = _core.Publisher(run, options.for_core(self._extra_files))
        except BaseException:
            self._extra_files.remove()
            raise
        self._process = OwnerProcess()
        self.background: BackgroundRead[_core.Ticket] = BackgroundRead()
        self.gate = None if options.optimizer is None else StepGate(options.optimizer, self.background)
        self.failures = FailureLog()
        keeps = options.state is not None
        self._end = weakref.finalize(
            self, _end, self.core, self._extra_files, run, keeps, self._process, self.background
        )

    @property
    def is_fork(self) -> bool:
        """Whether this process is a fork, which has only a copy and must not end it."""
        return self._process.is_a_fork

    @property
    def is_closed(self) -> bool:
        return not self._end.alive

    def close(self) -> None:
        if self.ranks is not None:
            self.ranks.close()
        self._end.detach()
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
        return sum(math.prod(shape) for _, _, shape, _ in state.tensors)

    def encode(self, state: ModelState, step: int, check: Callable[[], str | None] | None) -> _core.Ticket:
        """Compares, encodes and queues. The core calls `check` after the read, to learn whether the weights
        were written to during it."""
        if isinstance(self.core, _core.RankPublisher):
            return self.core.publish(state.tensors, step, check)
        return self.core.publish(state.tensors, state.aliases, step, check)


def _end(
    core: _core.Publisher | _core.RankPublisher,
    extra_files: ExtraFiles,
    run: str,
    keeps: bool,
    process: OwnerProcess,
    background: BackgroundRead[_core.Ticket],
) -> None:
    """Ends a session that was not closed. `keeps`: whether unsent versions outlive the process.

    Leaves the hook of the optimizer in place, because this may run in the middle of the optimizer's step, while torch
    iterates over its hooks. Without a session the hook does nothing.
    """
    if process.is_a_fork:
        return
    background.wait_finished(_CLOSE_READ_SECONDS)
    waiting = core.status()["versions_waiting"] + background.is_reading
    if waiting:
        fate = "the next one with this state= sends them" if keeps else "they are lost: use with, or drain() it"
        _log.warning("the publisher of %s was not closed, and %d of its versions were not sent; %s", run, waiting, fate)
    core.close()
    background.join()
    extra_files.remove()
