"""Publishing: every optimizer step becomes a version of a run, without waiting for the network."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import threading
import time
import weakref
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, cast

from weightwire import _core
from weightwire._carried import Carried
from weightwire._checks import seconds, whole_number
from weightwire._forks import Process
from weightwire._lora import Lora, is_peft
from weightwire._published import check_published_type
from weightwire._ranks import Ranks, Settled, is_distributed
from weightwire._reading import Background, Changed, StepGate, check_steps_all, read_already
from weightwire._state import State, refuse_what_is_no_model, state_of, unwrap
from weightwire.errors import InvalidArgumentError, WaitTimeout, WeightwireError

_log = logging.getLogger("weightwire")
_SAY_SECONDS = 2.0  # how long trouble lasts before it is said
_ASYNC_SECONDS = 0.5  # what a thread waits for at most, when nobody wants it to any more
_READ_SECONDS = 5.0  # what is being read at the end is waited for, unless it waits itself
# The stages of a ticket before its last.
_ON_THE_WAY = ("reading", "queued", "spooled", "uploading")


class _Open:
    """What the core needs as long as it works: kept by the publisher and by each of its tickets.

    `carried` is a directory that is removed at the end. `keeps`: whether what is not sent outlives the process.
    """

    def __init__(
        self,
        core: _core.Publisher | _core.RankPublisher,
        carried: Carried | None,
        run: str,
        keeps: bool,
        optimizer: Any,
    ) -> None:
        self._carried = carried
        self._core = core
        self._process = Process()
        self.background: Background[_core.Ticket] = Background()
        self.ranks: Ranks | None = None  # ends its core when nobody has it any more
        self.gate = None if optimizer is None else StepGate(optimizer, self.background)
        self.unseen = _Unseen()
        self._end = weakref.finalize(self, _end, core, carried, run, keeps, self._process, self.background)

    @property
    def is_a_fork_s(self) -> bool:
        """Whether this process has only a copy of it: then it is not its to end."""
        return self._process.is_a_fork

    @property
    def is_closed(self) -> bool:
        return not self._end.alive

    def close(self) -> None:
        self._end.detach()
        if self.gate is not None:
            self.gate.remove()
        self.background.finished(_READ_SECONDS)
        self._core.close()
        self.background.join()
        _remove(self._carried)

    def restore_carried(self) -> None:
        if self._carried is not None:
            self._carried.restore()


class _Outcome:
    """What becomes of one call of publish, and whether somebody was told that it failed."""

    def __init__(self, read: Future[_core.Ticket], step: int) -> None:
        self.read = read
        self.step = step
        self.seen = False


class _Unseen:
    """Calls of publish whose end nobody has seen: what fails must not go by without a word. Tickets may be dropped.

    Safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._outcomes: list[_Outcome] = []
        self._failed: _Outcome | None = None  # the last one that ended, if it did so

    def add(self, outcome: _Outcome) -> None:
        with self._lock:
            self._outcomes.append(outcome)

    def look(self) -> None:
        """Says in the log what has failed since the last time. The next version covers it."""
        with self._lock:
            while self._outcomes and self._outcomes[0].read.done():
                outcome = self._outcomes[0]
                stage, error = "failed", None
                if outcome.read.exception() is None:  # that was raised where it was waited for
                    known = outcome.read.result().look()
                    stage, error = known["stage"], known["error"]
                if stage in _ON_THE_WAY:
                    return
                self._outcomes.pop(0)
                self._failed = outcome if error is not None and stage == "failed" else None
                if self._failed is not None and not outcome.seen:
                    _log.warning("step %d was not published: %s", outcome.step, error)

    def settle(self) -> None:
        """Raises why the last version was not published, unless somebody was told already."""
        self.look()
        with self._lock:
            failed, self._failed = self._failed, None
        if failed is not None and not failed.seen:
            failed.seen = True
            failed.read.result().wait(0)


def _end(
    core: _core.Publisher | _core.RankPublisher,
    carried: Carried | None,
    run: str,
    keeps: bool,
    process: Process,
    background: Background[_core.Ticket],
) -> None:
    """When nobody has it any more, or the interpreter ends, and nobody has closed it.

    The gate of an optimizer stays, with nothing to hold it back: this may be called in the middle of the optimizer's
    step, which goes through such hooks one by one."""
    if process.is_a_fork:
        return
    background.finished(_READ_SECONDS)
    waiting = core.status()["versions_waiting"] + background.is_reading
    if waiting:
        fate = "the next one with this state= sends them" if keeps else "they are lost: use with, or drain() it"
        _log.warning("the publisher of %s was not closed, and %d of its versions were not sent; %s", run, waiting, fate)
    core.close()
    background.join()
    _remove(carried)


def _remove(carried: Carried | None) -> None:
    if carried is not None:
        carried.remove()


def _left(deadline: float | None, at_most: float) -> float:
    return at_most if deadline is None else max(0.0, min(at_most, deadline - time.monotonic()))


def _is_over(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() >= deadline


def _deadline(timeout: float | None) -> float | None:
    return None if timeout is None else time.monotonic() + timeout


@dataclass(frozen=True)
class TicketStats:
    """What is known of a publish just now. With several ranks, what it cost is this rank's part until it is
    committed, and then that of all."""

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
    """Of all that was published, tied ones once: what `changed` is a part of."""
    seconds: dict[str, float] = field(default_factory=dict)
    """From the moment when the weights had been read to each stage."""
    error: str | None = None
    """Why it failed, or why the last attempt did, which is made again."""


class Ticket:
    """What became of one call of `Publisher.publish`. Safe to drop."""

    def __init__(self, read: Future[_core.Ticket], publisher: _Open, step: int, elements: int) -> None:
        self._read = read
        self._outcome = _Outcome(read, step)
        self._publisher = publisher
        self._step = step
        publisher.unseen.add(self._outcome)
        self._elements = elements

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
        return self.stats.stage not in _ON_THE_WAY

    def wait_read(self, timeout: float | None = None) -> None:
        """Until the weights have been read and may change again, which they may at once unless they are read in the
        background. Raises if that failed, and `WaitTimeout` after `timeout` seconds."""
        self._publisher.background.holding(lambda: self._wait_read(timeout))

    def _wait_read(self, timeout: float | None) -> None:
        if not wait_for([self._read], timeout).done:
            raise self._late(timeout)
        self._publisher.background.see(self._read)  # what went wrong is raised here, and nowhere else
        self._read.result()

    def wait(self, timeout: float | None = None) -> TicketStats:
        """Until the version is committed. Raises if it failed, and `WaitTimeout` after `timeout` seconds."""
        deadline = _deadline(timeout)
        self._wait_read(timeout)
        try:
            over = self._read.result().wait(None if deadline is None else _left(deadline, math.inf))
        except WeightwireError:
            self._outcome.seen = True
            raise
        if not over:
            raise self._late(timeout)
        return self.stats

    async def wait_async(self, timeout: float | None = None) -> TicketStats:
        """`wait` for an event loop."""
        deadline = _deadline(timeout)
        while True:
            try:
                return await asyncio.to_thread(self.wait, _left(deadline, _ASYNC_SECONDS))
            except WaitTimeout:
                if _is_over(deadline):
                    raise self._late(timeout) from None

    def _late(self, timeout: float | None) -> WaitTimeout:
        stats = self.stats
        why = f": {stats.error}" if stats.error else ""
        what = f"step {stats.step}" if stats.version is None else f"version {stats.version}"
        return WaitTimeout(f"{what} is still {stats.stage} after {timeout} seconds{why}")

    def __repr__(self) -> str:
        stats = self.stats
        return f"<Ticket of version {stats.version}, step {stats.step}: {stats.stage}>"


@dataclass(frozen=True)
class PublisherStats:
    """What a publisher is at just now."""

    committed: int | None
    versions_waiting: int
    bytes_waiting: int
    anchor_in_work: int | None
    newest_anchor: int | None
    last_error: str | None
    """Of what is tried again."""
    stopped: str | None
    """Why nothing will be published any more."""
    anchor_error: str | None
    warnings: list[str]
    bytes_sent: int
    bytes_received: int
    held_seconds: float = 0.0
    """How long `publish`, tickets' `wait_read` and the optimizer's waiting have held up who trains, in all."""


def _encode(
    core: _core.Publisher | _core.RankPublisher, state: State, step: int, changed: Changed | None
) -> _core.Ticket:
    if isinstance(core, _core.RankPublisher):
        return core.publish(state.tensors, step, changed)
    return core.publish(state.tensors, state.aliases, step, changed)


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
    carry           a directory whose configuration and tokenizer files go with every anchor; by default, those of a
                    transformers model and of `tokenizer`
    carry_code      carry what could run as code when loaded too (.py, pickles); readers still have to ask for it
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
        anchor_every: int = 100,
        anchor_percent: int = 100,
        dtype: Any = None,
        lora: Lora = "adapter",
        tokenizer: Any = None,
        carry: str | os.PathLike[str] | None = None,
        carry_code: bool = False,
        state: str | os.PathLike[str] | None = None,
        base: Literal["memory", "file"] = "memory",
        when_full: Literal["wait", "skip"] = "wait",
        spool_versions: int = 16,
        single_writer: bool = False,
        drop_lost_versions: bool = False,
        rebuild: bool = True,
        threads: int = 0,
        bytes_per_second: int = 0,
        distributed: bool | None = None,
        rank_timeout: float = 600,
        optimizer: Any = None,
    ) -> None:
        many = is_distributed() if distributed is None else distributed
        if many and not is_distributed():
            raise InvalidArgumentError("distributed=True takes a process group of torch.distributed of several ranks")
        self._model = model
        self._dtype = dtype
        self._lora = lora
        self._step = -1
        carried: Carried | None = None

        def settle(writes_carried: bool) -> Settled:
            """Of several ranks, all are told of what one of them refuses here."""
            nonlocal carried
            if model is not None:
                refuse_what_is_no_model(model)
            if base not in ("memory", "file") or when_full not in ("wait", "skip"):
                raise InvalidArgumentError('base is "memory" or "file", and when_full is "wait" or "skip"')
            if base == "file" and state is None:
                raise InvalidArgumentError('base="file" needs a directory to lie in: give state=')
            if lora not in ("adapter", "merged"):
                raise InvalidArgumentError('lora is "adapter" or "merged"')
            if many and (state is not None or when_full == "skip"):
                raise InvalidArgumentError('with several ranks there is no state= directory, and no when_full="skip"')
            check_published_type(dtype)
            if optimizer is not None:
                check_steps_all(model, optimizer)
            options = {
                "anchor_every": whole_number("anchor_every", anchor_every),
                "anchor_percent": whole_number("anchor_percent", anchor_percent),
                "spool_versions": whole_number("spool_versions", spool_versions, least=1),
                "skip_when_full": when_full == "skip",
                "state": None if state is None else os.fspath(state),
                "base_in_file": base == "file",
                "carried": None if carry is None else os.fspath(carry),
                "carry_code": bool(carry_code),
                "adapter": lora == "adapter" and is_peft(unwrap(model)),
                "single_writer": bool(single_writer),
                "drop_lost_versions": bool(drop_lost_versions),
                "rebuild": bool(rebuild),
                "threads": whole_number("threads", threads),
                "bytes_per_second": whole_number("bytes_per_second", bytes_per_second),
            }
            if carry is None and writes_carried:
                carried = Carried()
                options["carried"] = carried.write(model, tokenizer, dtype, lora)
            return Settled(os.fspath(run), options, seconds("rank_timeout", rank_timeout))

        self._ranks: Ranks | None = None
        self._core: _core.Publisher | _core.RankPublisher
        try:
            if many:
                patience = rank_timeout if isinstance(rank_timeout, (int, float)) and rank_timeout > 0 else 600
                self._ranks = Ranks(settle, model, dtype, lora, patience)
                self._core = self._ranks.core
            else:
                settled = settle(True)
                self._core = _core.Publisher(settled.run, settled.options)
        except BaseException:
            _remove(carried)
            raise
        # Every anchor reads the carried files anew, so they stay as long as the core works.
        self._open = _Open(self._core, carried, os.fspath(run), state is not None, optimizer)
        self._open.ranks = self._ranks
        self._turn = threading.Lock()  # one thread at a time publishes
        self._said: str | None = None  # of what is tried again, in the log
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
        if self._open.is_closed:
            raise InvalidArgumentError("the publisher is closed")
        if background is None:
            background = self._open.gate is not None and model is None
        with self._turn:
            return cast(Ticket, self._open.background.holding(lambda: self._publish(step, model, background)))

    def _publish(self, step: int | None, model: Any, background: bool) -> Ticket:
        number = self._step + 1
        core = self._core
        try:
            self._open.background.settle()
            self._open.restore_carried()
            self._open.unseen.look()
            self._say_trouble()
            if step is not None:
                number = whole_number("step", step)
            model = self._model if model is None else model
            if model is None:
                raise InvalidArgumentError("nothing to publish: the publisher was made without a model")
            if self._ranks is None:
                state = state_of(model, self._dtype, self._lora, known=self._model, goes_on=background)
            else:
                state = self._ranks.items(model, goes_on=background)
        except BaseException as error:
            self._refuse(number, error)
            raise
        if self._ranks is None:
            elements = sum(math.prod(shape) for _, _, shape, _ in state.tensors)
        else:
            elements = self._ranks.elements
        if not state.goes_on:
            # Of several ranks, it counts also if it fails: the others cannot know.
            if self._ranks is not None:
                self._step = number
            ticket = _encode(core, state, number, None)
            self._step = number
            return Ticket(read_already(ticket), self._open, number, elements)
        changed = Changed(state.read)
        kept = self._open  # a publisher that nobody has any more must not be ended while it is read for
        try:
            future = kept.background.start(lambda: (kept, _encode(core, state, number, changed))[1])
        except BaseException as error:
            self._refuse(number, error)
            raise
        self._step = number
        return Ticket(future, self._open, number, elements)

    def _refuse(self, step: int, error: BaseException) -> None:
        """Of several ranks, a call that fails on one counts on all."""
        if self._ranks is not None:
            self._step = step
            self._ranks.refuse(step, error)

    def drain(self, timeout: float | None = None) -> None:
        """Until everything is in the bucket, anchors too. Raises `WaitTimeout` if it takes longer, and what stopped the
        publisher if something did.

        What goes wrong meanwhile is tried again, and said once in the log.
        """
        self._refuse_in_a_fork()
        deadline = _deadline(timeout)
        reading = self._open.background.reading  # another may begin meanwhile, whose error is not ours
        while reading is not None and not self._open.background.finished(_left(deadline, _SAY_SECONDS), reading):
            self._not_drained(timeout, deadline)
        while not self._core.drain(_left(deadline, _SAY_SECONDS)):
            self._not_drained(timeout, deadline)
        if reading is not None:
            self._open.background.settle(reading)
        self._open.unseen.settle()

    async def drain_async(self, timeout: float | None = None) -> None:
        """`drain` for an event loop."""
        self._refuse_in_a_fork()
        deadline = _deadline(timeout)
        reading = self._open.background.reading
        finished = self._open.background.finished
        while reading is not None and not await asyncio.to_thread(finished, _left(deadline, _ASYNC_SECONDS), reading):
            self._not_drained(timeout, deadline)
        while not await asyncio.to_thread(self._core.drain, _left(deadline, _ASYNC_SECONDS)):
            self._not_drained(timeout, deadline)
        if reading is not None:
            self._open.background.settle(reading)
        self._open.unseen.settle()

    def _refuse_in_a_fork(self) -> None:
        if self._open.is_a_fork_s:
            raise InvalidArgumentError("a fork of the publisher's process cannot publish: it has none of its threads")

    def _say_trouble(self) -> str | None:
        """What goes wrong just now and is tried again, which the log has once."""
        stats = self.stats
        trouble = stats.last_error or stats.anchor_error
        if trouble is not None and trouble != self._said:
            _log.warning("%s; trying again", trouble)
        self._said = trouble
        return trouble

    def _not_drained(self, timeout: float | None, deadline: float | None) -> None:
        trouble = self._say_trouble()
        if _is_over(deadline):
            why = f": {trouble}" if trouble else ""
            waiting = self.stats.versions_waiting + self._open.background.is_reading
            raise WaitTimeout(f"{waiting} versions still wait to be sent after {timeout} s{why}")

    def close(self) -> None:
        """Ends at once. What has not been sent is in the state directory, if there is one, else lost: drain first."""
        if self._open.is_a_fork_s:
            return
        if self._ranks is not None:
            self._ranks.close()
        self._open.close()

    @property
    def stats(self) -> PublisherStats:
        return PublisherStats(**self._core.status(), held_seconds=self._open.background.held_seconds)

    @property
    def distributed(self) -> bool:
        """Whether all ranks publish together."""
        return self._ranks is not None

    @property
    def run_id(self) -> str:
        return self._core.run_id

    async def __aenter__(self) -> Publisher:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None or self._open.is_closed:
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
        if self._open.is_closed or self._open.is_a_fork_s:
            return
        if kind is None:
            try:
                self.drain()
            finally:
                self.close()
            return
        # What was published before the error still gets a chance, but not for ever; and the error is the one to see.
        try:
            self.drain(30)
        except Exception as trouble:  # also what went wrong while weights were read
            _log.warning("not everything was sent before the publisher was closed: %s", trouble)
        finally:
            with contextlib.suppress(WeightwireError):
                self.close()
