"""Publishing: every optimizer step becomes a version of a run, without waiting for the network."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal

from weightwire import _core
from weightwire._arguments import whole_number
from weightwire._background_read import WriteCheck, finished_read
from weightwire._deadline import Deadline
from weightwire._lora import Lora
from weightwire._model_state import ModelState, state_of
from weightwire._publisher_options import PublisherOptions
from weightwire._publisher_session import PublisherSession
from weightwire._ticket import ASYNC_WAIT_SECONDS, Ticket
from weightwire.errors import InvalidArgumentError, WaitTimeoutError, WeightwireError

_log = logging.getLogger("weightwire")
_LOG_TROUBLE_SECONDS = 2.0
"""How long an error is retried before `drain` logs it."""
_EXIT_SECONDS = 30.0
"""How long leaving `with` after an exception waits until everything is sent."""


@dataclass(frozen=True)
class PublisherStats:
    """How a publisher currently stands."""

    committed: int | None
    versions_waiting: int
    bytes_waiting: int
    anchor_in_work: int | None
    newest_anchor: int | None
    last_error: str | None
    """The error of an operation that is retried."""
    stopped: str | None
    """Why nothing more will be published."""
    anchor_error: str | None
    warnings: list[str]
    bytes_sent: int
    bytes_received: int
    held_seconds: float = 0.0
    """How long `publish`, tickets' `wait_read` and the optimizer's hook have blocked the trainer, in all."""


class Publisher:
    """Makes versions of a run from a model's weights.

    `model` is a torch module, a state dict, or any mapping of names to arrays; it is read anew by each `publish`.
    `publish` returns as soon as the weights are compared with the version before and the difference is encoded; they
    may then change again. Upload and commit follow in the background, in order. With `optimizer`, the reading is in the
    background too: training goes on, and only the next `optimizer.step` waits for it.

    >>> import tempfile
    >>> import numpy as np
    >>> import weightwire as ww
    >>> bucket = tempfile.mkdtemp()
    >>> weights = {"layer.weight": np.zeros((2, 3), np.float32)}
    >>> with ww.Publisher(bucket, weights) as publisher:
    ...     first = publisher.publish(step=0)
    ...     weights["layer.weight"][1, 2] = 0.5
    ...     second = publisher.publish(step=1)
    >>> second.stats.version, second.stats.changed
    (1, 1)
    >>> ww.load(bucket)["layer.weight"]
    array([[0. , 0. , 0. ],
           [0. , 0. , 0.5]], dtype=float32)

    Arguments, all but the first two by name:

    run             where the run lies, made if missing: a path, file://, s3:// or hf:// URL
    anchor_every    an anchor (a full checkpoint) each so many versions; 0: not by this rule
    anchor_percent  an anchor when the deltas since the last add up to this share of the model; 0: not by this rule
    dtype           what floating-point tensors are rounded to (torch.bfloat16), as `tensor.to` does, without a second
                    copy of them; `Fp8(...)` for fp8 with scales; None: as they are
    lora            of a PEFT model, publish the "adapter" alone, as its save_pretrained does, or all weights with the
                    adapters "merged" into them
    tokenizer       one of transformers, whose files go with every anchor
    extra_files     a directory whose configuration and tokenizer files go with every anchor; by default, those of a
                    transformers model and of `tokenizer`
    include_code    include what could run as code when loaded too (.py, pickles); readers still have to ask for it
    state           a directory for what a restart needs: the versions not sent yet and, with base="file", the base
                    copy. Without it both are in memory
    base            where the base copy is, which versions are compared with: in "memory", or in a "file" of `state`
    when_full       what to do when `spool_versions` versions, or 4 GiB of them, wait to be sent: "wait" for room, or
                    "skip": the next version covers both steps
    spool_versions  as said there
    drop_lost_versions  versions that wait in `state` and whose numbers another publisher has taken are given up
    rebuild         after a restart, rebuild the newest version from the bucket where it is not in `state`, so that the
                    next one is a delta; False: the next one is a rebase, a whole anchor
    threads         to compare and encode with; 0: one for each core
    bytes_per_second  at most to and from the bucket; 0: as fast as it goes
    single_writer   go on where the store cannot keep two publishers apart
    distributed     publish from all ranks of torch.distributed together, each its own shards; by default if there is a
                    process group of several ranks. All ranks make the publisher, and call publish equally often
    rank_timeout    seconds that a rank may be silent before the others give a call of publish up
    optimizer       what changes the weights: publish then returns at once, and the next step of this optimizer of torch
                    waits until they have been read. Before anything else changes them, call the ticket's wait_read()
    """

    def __init__(
        self,
        run: str | os.PathLike[str],
        model: Any = None,
        *,
        anchor_every: int = _core.ANCHOR_EVERY_VERSIONS,
        anchor_percent: int = _core.ANCHOR_EVERY_PERCENT,
        dtype: Any = None,
        lora: Lora = "adapter",
        tokenizer: Any = None,
        extra_files: str | os.PathLike[str] | None = None,
        include_code: bool = False,
        state: str | os.PathLike[str] | None = None,
        base: Literal["memory", "file"] = "memory",
        when_full: Literal["wait", "skip"] = "wait",
        spool_versions: int = _core.MAX_WAITING_VERSIONS,
        single_writer: bool = False,
        drop_lost_versions: bool = False,
        rebuild: bool = True,
        threads: int = 0,
        bytes_per_second: int = 0,
        distributed: bool | None = None,
        rank_timeout: float = _core.RANK_DEADLINE_SECONDS,
        optimizer: Any = None,
    ) -> None:
        options = PublisherOptions(
            model=model,
            anchor_every=anchor_every,
            anchor_percent=anchor_percent,
            dtype=dtype,
            lora=lora,
            tokenizer=tokenizer,
            extra_files=extra_files,
            include_code=include_code,
            state=state,
            base=base,
            when_full=when_full,
            spool_versions=spool_versions,
            single_writer=single_writer,
            drop_lost_versions=drop_lost_versions,
            rebuild=rebuild,
            threads=threads,
            bytes_per_second=bytes_per_second,
            distributed=distributed,
            rank_timeout=rank_timeout,
            optimizer=optimizer,
        )
        self._options = options
        self._step = -1
        self._session = PublisherSession(os.fspath(run), options)
        # One thread at a time publishes, from reading the weights on, so that steps are numbered in the order in which
        # the core gets them. A background read calls the core after this lock is released, and the next call of publish
        # waits for it. The core relies on both.
        self._publishing = threading.Lock()
        self._logged_trouble: str | None = None
        for warning in self.stats.warnings:
            _log.warning(warning)

    def publish(self, step: int | None = None, model: Any = None, *, background: bool | None = None) -> Ticket:
        """Makes the next version from the weights as they are now, and returns once they may change again.

        `step` is information for people, one more than the last by default. `model` replaces the one given at the
        start, for this call. With `background`, it returns before the weights have been read: they may change after the
        ticket's `wait_read`; the step of a publisher's optimizer waits for that by itself. It is the default if there
        is an optimizer and no `model`. Adapters that are merged for publishing are never read so, and what is published
        as fp8 is read once before, for its scales.
        """
        self._refuse_in_a_fork()
        if self._session.is_closed:
            raise InvalidArgumentError("the publisher is closed")
        if background is None:
            background = self._session.gate is not None and model is None
        with self._publishing:
            return self._session.background.timed(lambda: self._publish(step, model, background))

    def _publish(self, step: int | None, model: Any, background: bool) -> Ticket:
        session = self._session
        number = self._step + 1
        try:
            session.before_publish()
            self._log_trouble()
            if step is not None:
                number = whole_number("step", step)
            model = self._options.model if model is None else model
            if model is None:
                raise InvalidArgumentError("nothing to publish: the publisher was made without a model")
            state = self._state_of(model, background)
        except BaseException as error:
            self._refuse(number, error)
            raise
        elements = session.elements(state)
        if not state.read_in_background:
            if session.ranks is not None:
                self._step = number  # counts even if this fails, because the other ranks cannot know
            ticket = session.encode(state, number, None)
            self._step = number
            return Ticket(finished_read(ticket), session, number, elements)
        check = WriteCheck(state.watched)
        try:
            # The thread refers to the session, which must not end during the read.
            read = session.background.start(lambda: session.encode(state, number, check))
        except BaseException as error:
            self._refuse(number, error)
            raise
        self._step = number
        return Ticket(read, session, number, elements)

    def _state_of(self, model: Any, in_background: bool) -> ModelState:
        """The state of a model, or of this rank's shards."""
        options, ranks = self._options, self._session.ranks
        if ranks is not None:
            return ranks.state_of(model, in_background=in_background)
        return state_of(model, options.dtype, options.lora, known=options.model, in_background=in_background)

    def _refuse(self, step: int, error: BaseException) -> None:
        """With several ranks, makes a call that fails on this one fail on all."""
        if self._session.ranks is not None:
            self._step = step
            self._session.background.wait_finished()  # Ctrl-C may have ended the wait for it
            self._session.ranks.refuse(step, error)

    def drain(self, timeout: float | None = None) -> None:
        """Waits until everything is in the bucket, anchors too. Raises `WaitTimeoutError` if it takes longer, and the
        error that stopped the publisher if one did.

        Other errors are retried, and logged once.
        """
        self._refuse_in_a_fork()
        deadline = Deadline(timeout)
        reading = self._session.background.reading  # a later read may start, whose error belongs to its own caller
        while not self._drain_for(deadline.left(_LOG_TROUBLE_SECONDS), reading):
            self._not_drained(deadline)
        self._raise_failures(reading)

    async def drain_async(self, timeout: float | None = None) -> None:
        """`drain` for an event loop."""
        self._refuse_in_a_fork()
        deadline = Deadline(timeout)
        reading = self._session.background.reading
        while not await asyncio.to_thread(self._drain_for, deadline.left(ASYNC_WAIT_SECONDS), reading):
            self._not_drained(deadline)
        self._raise_failures(reading)

    def _drain_for(self, seconds: float, reading: Future[_core.Ticket] | None) -> bool:
        """Waits for the read, and then until everything is in the bucket. Returns False on timeout."""
        deadline = Deadline(seconds)
        if reading is not None and not self._session.background.wait_finished(seconds, reading):
            return False
        return self._session.core.drain(deadline.left())

    def _raise_failures(self, reading: Future[_core.Ticket] | None) -> None:
        """After draining."""
        if reading is not None:
            self._session.background.wait(reading)
        self._session.failures.raise_last()

    def _refuse_in_a_fork(self) -> None:
        if self._session.is_fork:
            raise InvalidArgumentError("a fork of the publisher's process cannot publish: it has none of its threads")

    def _log_trouble(self) -> str | None:
        """Returns the error that is currently retried, and logs it once."""
        stats = self.stats
        trouble = stats.last_error or stats.anchor_error
        if trouble is not None and trouble != self._logged_trouble:
            _log.warning("%s; trying again", trouble)
        self._logged_trouble = trouble
        return trouble

    def _not_drained(self, deadline: Deadline) -> None:
        trouble = self._log_trouble()
        if deadline.is_over:
            why = f": {trouble}" if trouble else ""
            waiting = self.stats.versions_waiting + self._session.background.is_reading
            raise WaitTimeoutError(f"{waiting} versions still wait to be sent after {deadline.timeout} s{why}")

    def close(self) -> None:
        """Ends at once. Unsent versions are in the state directory, or lost if there is none: drain first."""
        if self._session.is_fork:
            return
        self._session.close()

    @property
    def stats(self) -> PublisherStats:
        return PublisherStats(**self._session.core.status(), held_seconds=self._session.background.held_seconds)

    @property
    def distributed(self) -> bool:
        """Whether all ranks publish together."""
        return self._session.ranks is not None

    @property
    def run_id(self) -> str:
        return self._session.core.run_id

    async def __aenter__(self) -> Publisher:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None or self._session.is_closed:
            await asyncio.to_thread(self.__exit__, kind, error, trace)
            return
        try:
            await self.drain_async()
        finally:
            await asyncio.to_thread(self.close)

    def __enter__(self) -> Publisher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session.is_closed or self._session.is_fork:
            return
        if kind is None:
            try:
                self.drain()
            finally:
                self.close()
            return
        # Versions from before the exception still get some time. The exception is what the user must see.
        self._close_within(_EXIT_SECONDS, "not everything was sent before the publisher was closed")

    def _close_within(self, seconds: float, what_failed: str) -> None:
        """Drains for at most this time, and closes. An error is only logged, after `what_failed`."""
        try:
            self.drain(seconds)
        except Exception as error:  # a background read may fail with any exception
            _log.warning("%s: %s", what_failed, error)
        finally:
            with contextlib.suppress(WeightwireError):
                self.close()
