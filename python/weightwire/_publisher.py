"""Publishing: every optimizer step becomes a version of a run, without waiting for the network."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from weightwire import _core
from weightwire._arguments import whole_number
from weightwire._background_read import finished_read
from weightwire._deadline import Deadline
from weightwire._lora import Lora
from weightwire._model_state import ModelState
from weightwire._publisher_options import PublisherArguments
from weightwire._publisher_session import PublisherSession, versions
from weightwire._ticket import Ticket, wait_in_slices
from weightwire.errors import InvalidArgumentError, WaitTimeoutError

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from weightwire._model_types import Model
    from weightwire._publisher_options import PublisherOptions

_log = logging.getLogger("weightwire")
_T = TypeVar("_T")
_LOG_ERROR_SECONDS = 2.0
"""How long an error is retried before `flush` logs it."""


@dataclass(frozen=True, kw_only=True)
class PublisherStatus:
    """The state of a publisher at one moment."""

    version: int | None
    """The newest version that is committed."""
    pending_versions: int
    """Versions that are not in the bucket yet."""
    pending_bytes: int
    anchor_version: int | None
    """The version of the newest complete anchor."""
    anchor_in_progress: int | None
    """The version whose anchor is being uploaded."""
    last_error: str | None
    """The error of an operation that is retried."""
    anchor_error: str | None
    """Why the last anchor was abandoned, or is retried."""
    fatal_error: str | None
    """Why nothing more will be published."""
    warnings: tuple[str, ...]
    bytes_sent: int
    bytes_received: int
    blocked_seconds: float
    """How long `publish`, tickets' `wait_read` and the optimizer's hook have blocked the trainer, in all."""


class Publisher:
    """Makes versions of a run from a model's weights.

    `model` is a torch module, a state dict, or any mapping of names to arrays; each `publish` reads it again. `publish`
    returns as soon as the weights are compared with the previous version and the difference is encoded; they may then
    change again. Upload and commit follow in the background, in order. With `optimizer`, the weights are also read in
    the background: training continues, and only the next `optimizer.step` waits for the read.

    Leaving `with`, or `close`, waits until everything is sent. After an exception, and when the interpreter ends
    without `close`, that takes at most `exit_timeout` seconds, and the log says what was not sent.

    >>> import tempfile
    >>> import numpy as np
    >>> import weightwire as ww
    >>> bucket = tempfile.mkdtemp()
    >>> weights = {"layer.weight": np.zeros((2, 3), np.float32)}
    >>> with ww.Publisher(bucket, weights) as publisher:
    ...     first = publisher.publish(step=0)
    ...     weights["layer.weight"][1, 2] = 0.5
    ...     second = publisher.publish(step=1)
    >>> second.status.version, second.status.changed_elements
    (1, 1)
    >>> ww.load(bucket)["layer.weight"]
    array([[0. , 0. , 0. ],
           [0. , 0. , 0.5]], dtype=float32)

    Arguments, all but the first two by name:

    run             where the run is: a path, or a file://, s3:// or hf:// URL. It is created if it does not exist
    dtype           rounds floating-point tensors to this type, as `tensor.to` does, without a second copy of them:
                    torch.bfloat16, "bfloat16", or `Fp8(...)` for fp8 with scales. None: publishes them unchanged
    lora            of a PEFT model, publish the "adapter" alone, as its save_pretrained does, or all weights with the
                    adapters "merged" into them
    tokenizer       a tokenizer of transformers, whose files every anchor includes
    extra_files     a directory whose configuration and tokenizer files every anchor includes; by default, those of a
                    transformers model and of `tokenizer`
    include_code    include files that can run as code when loaded too (.py, pickles); readers must request them
    optimizer       the torch optimizer that changes the weights: publish then returns at once, and the optimizer's next
                    step waits until they have been read. Before other code changes them, call the ticket's wait_read()
    state_dir       keeps unsent versions in this directory, and with base="disk" the base copy, so that they survive a
                    restart. Without it both are in memory
    base            where to keep the base copy, with which versions are compared: in "memory", or on "disk" in
                    `state_dir`
    anchor_every    write an anchor, a complete checkpoint, every N versions. None: not by this rule
    anchor_percent  also write one when the deltas since the last anchor add up to N percent of the model. None: not by
                    this rule
    max_pending_versions  the publisher is full when this many versions, or 4 GiB of them, are unsent
    when_full       then `publish` either makes the trainer "wait" for room, or returns a ticket that was skipped
                    ("skip"): the next version covers both steps
    single_writer   create the run even where the store cannot keep two publishers apart
    discard_conflicting  discard unsent versions in `state_dir` whose numbers another publisher has taken
    allow_new_model  publish even if no tensor has the name and shape of one in the run's newest version. Without it,
                    such a call of `publish` raises MismatchError, because the run or the model is probably wrong
    rebuild         after a restart without base copy, rebuild the newest version from the bucket, so that the next one
                    is a delta. False: the next one is sent as a whole anchor
    distributed     publish from all ranks of torch.distributed together, each its own shards. All ranks create the
                    publisher, and call publish equally often. None: if there is a process group of several ranks
    rank_timeout    how many seconds a rank may be silent before the other ranks fail a call of publish
    exit_timeout    how many seconds leaving `with` after an exception, or the interpreter's exit, waits until
                    everything is sent
    threads         use this many threads. None: one for each core
    max_bytes_per_second  send and receive at most this many bytes per second. None: no limit
    """

    def __init__(
        self,
        run: str | os.PathLike[str],
        model: Model | None = None,
        *,
        dtype: Any = None,
        lora: Lora = "adapter",
        tokenizer: Any = None,
        extra_files: str | os.PathLike[str] | None = None,
        include_code: bool = False,
        optimizer: Any = None,
        state_dir: str | os.PathLike[str] | None = None,
        base: Literal["memory", "disk"] = "memory",
        anchor_every: int | None = _core.ANCHOR_EVERY_VERSIONS,
        anchor_percent: int | None = _core.ANCHOR_EVERY_PERCENT,
        max_pending_versions: int = _core.MAX_PENDING_VERSIONS,
        when_full: Literal["wait", "skip"] = "wait",
        single_writer: bool = False,
        discard_conflicting: bool = False,
        allow_new_model: bool = False,
        rebuild: bool = True,
        distributed: bool | None = None,
        rank_timeout: float = _core.RANK_DEADLINE_SECONDS,
        exit_timeout: float = 30.0,
        threads: int | None = None,
        max_bytes_per_second: int | None = None,
    ) -> None:
        self._arguments = PublisherArguments(
            model=model,
            dtype=dtype,
            lora=lora,
            tokenizer=tokenizer,
            extra_files=extra_files,
            include_code=include_code,
            optimizer=optimizer,
            state_dir=state_dir,
            base=base,
            anchor_every=anchor_every,
            anchor_percent=anchor_percent,
            max_pending_versions=max_pending_versions,
            when_full=when_full,
            single_writer=single_writer,
            discard_conflicting=discard_conflicting,
            allow_new_model=allow_new_model,
            rebuild=rebuild,
            distributed=distributed,
            rank_timeout=rank_timeout,
            exit_timeout=exit_timeout,
            threads=threads,
            max_bytes_per_second=max_bytes_per_second,
        )
        self._step = -1
        self._session = PublisherSession(os.fspath(run), self._arguments)
        # One thread at a time publishes, from reading the weights on, so that steps are numbered in the order in which
        # the core gets them. A background read calls the core after this lock is released, and the next call of publish
        # waits for it. The core relies on both. Closing takes it too, so that nothing is published after the last
        # flush; a signal handler may close in the middle of publish, so it is re-entrant.
        self._publishing = threading.RLock()
        self._logged_error: str | None = None
        for warning in self.status.warnings:
            _log.warning(warning)

    @classmethod
    async def open_async(
        cls, run: str | os.PathLike[str], model: Model | None = None, **options: Unpack[PublisherOptions]
    ) -> Publisher:
        """`Publisher(…)` for an event loop: `async with await Publisher.open_async(run, model) as publisher`."""
        return await _in_thread(lambda: cls(run, model, **options))

    def publish(self, step: int | None = None, *, model: Model | None = None, background: bool | None = None) -> Ticket:
        """Makes the next version from the current weights, and returns once they may change again.

        `step` is shown to users; by default it is one more than the last. `model` replaces the publisher's model for
        this call. With `background`, it returns before the weights have been read: they may change after the ticket's
        `wait_read`, for which the step of the publisher's optimizer waits automatically. The default is True if there
        is an optimizer and no `model`. Adapters that are merged for publishing are never read in the background, and
        what is published as fp8 is read once before, for its scales.
        """
        self._refuse_in_a_fork()
        if background is None:
            background = self._session.gate is not None and model is None
        with self._publishing:
            self._refuse_if_closed()
            return self._session.background.timed(lambda: self._publish(step, model, background))

    async def publish_async(
        self, step: int | None = None, *, model: Model | None = None, background: bool | None = None
    ) -> Ticket:
        """`publish` for an event loop. The weights must not change until it returns. If it is cancelled, the version is
        made anyway."""
        return await _in_thread(lambda: self.publish(step, model=model, background=background))

    def _publish(self, step: int | None, model: Any, background: bool) -> Ticket:
        session = self._session
        number = self._step + 1
        try:
            session.before_publish()
            self._log_error()
            if step is not None:
                number = whole_number("step", step)
            model = self._arguments.model if model is None else model
            if model is None:
                raise InvalidArgumentError(
                    "nothing to publish: give publish() a model=, because the publisher was made without one"
                )
            state = self._state_of(model, background)
        except BaseException as error:
            self._refuse(number, error)
            raise
        elements = session.elements(state)
        check = state.check
        if check is None:
            if session.ranks is not None:
                self._step = number  # counts even if this fails, because the other ranks cannot know
            ticket = session.encode(state, number, None)
            self._step = number
            return Ticket(finished_read(ticket), session, number, elements)
        try:
            # The thread refers to the session, which must not end during the read.
            read = session.background.start(lambda: session.encode(state, number, check))
        except BaseException as error:
            state.prepared.release()
            self._refuse(number, error)
            raise
        self._step = number
        return Ticket(read, session, number, elements)

    def _state_of(self, model: Any, in_background: bool) -> ModelState:
        """The state of a model, or of this rank's shards."""
        ranks = self._session.ranks
        if ranks is not None:
            return ranks.state_of(model, in_background=in_background)
        return self._session.models.state_of(model, in_background=in_background)

    def _refuse(self, step: int, error: BaseException) -> None:
        """With several ranks, makes a call that fails on this one fail on all."""
        if self._session.ranks is not None:
            self._step = step
            self._session.background.wait_finished()  # Ctrl-C may have ended the wait for it
            self._session.ranks.refuse(step, error)

    def flush(self, timeout: float | None = None) -> None:
        """Waits until everything is in the bucket, anchors included. Raises `WaitTimeoutError` after `timeout` seconds,
        and the error that stopped the publisher, if one did.

        Also raises if the last version could not be published, unless its ticket has raised that. Other errors are
        retried, and logged once.
        """
        self._flush(timeout, self._session.background.reading)

    async def flush_async(self, timeout: float | None = None) -> None:
        """`flush` for an event loop."""
        reading = self._session.background.reading
        await wait_in_slices(lambda slice: self._flush(slice, reading), timeout, self._not_flushed)

    def _flush(self, timeout: float | None, reading: Future[_core.Ticket] | None) -> None:
        """`reading`: the read that ran when flush was called. A later one may start, whose error belongs to its own
        caller."""
        self._refuse_in_a_fork()
        self._refuse_if_closed()
        deadline = Deadline(timeout)
        while not self._session.flush_for(deadline.left(_LOG_ERROR_SECONDS), reading):
            self._log_error()
            if deadline.is_over:
                raise self._not_flushed(timeout)
        if reading is not None:
            self._session.background.wait(reading)
        self._session.failures.raise_last()

    def close(self, timeout: float | None = None, *, discard: bool = False) -> None:
        """Flushes, and ends. Does nothing if the publisher is closed.

        Raises what `flush` raises. After `WaitTimeoutError` the publisher is still open and continues to send: call
        `close` again, with more time or with `discard`. After any other error it is closed, because waiting longer
        would not help.

        With `discard=True` it ends at once: unsent versions stay in `state_dir`, and the next publisher with this
        directory sends them; without a `state_dir` they are lost.
        """
        session = self._session
        if session.is_fork or session.is_closed:
            return
        if discard:
            session.close()
            return
        deadline = Deadline(timeout)
        if not self._publishing.acquire(timeout=min(deadline.left(), threading.TIMEOUT_MAX)):
            raise self._not_closed(timeout)
        try:
            if session.is_closed:
                return
            try:
                self.flush(deadline.left_or_none)
            except WaitTimeoutError:
                raise self._not_closed(timeout) from None
            except Exception:
                session.close()
                raise
            session.close()
        finally:
            self._publishing.release()

    async def close_async(self, timeout: float | None = None, *, discard: bool = False) -> None:
        """`close` for an event loop."""
        if discard:
            await asyncio.to_thread(self.close, discard=True)
        else:
            await wait_in_slices(self.close, timeout, self._not_closed)

    def _not_flushed(self, timeout: float | None) -> WaitTimeoutError:
        status = self.status
        error = status.last_error or status.anchor_error
        unsent = self._session.unsent
        if unsent:
            what = f"{versions(unsent)} {'is' if unsent == 1 else 'are'} still not sent"
        else:
            what = f"the anchor of version {status.anchor_in_progress} is still not sent"
        return WaitTimeoutError(f"{what} after {timeout} s" + (f": {error}" if error else ""))

    def _not_closed(self, timeout: float | None) -> WaitTimeoutError:
        return WaitTimeoutError(
            f"{self._not_flushed(timeout)}; the publisher is still open and continues to send: call close() again, "
            f"or give it discard=True, and {self._session.fate}"
        )

    def _refuse_in_a_fork(self) -> None:
        if self._session.is_fork:
            raise InvalidArgumentError("a fork of the publisher's process cannot publish: it has none of its threads")

    def _refuse_if_closed(self) -> None:
        if self._session.is_closed:
            raise InvalidArgumentError("the publisher is closed")

    def _log_error(self) -> None:
        """Logs the error that is currently retried, once."""
        status = self.status
        error = status.last_error or status.anchor_error
        if error is not None and error != self._logged_error:
            _log.warning("%s; trying again", error)
        self._logged_error = error

    @property
    def status(self) -> PublisherStatus:
        """A copy of what is known now."""
        return PublisherStatus(**self._session.core.status(), blocked_seconds=self._session.background.blocked_seconds)

    @property
    def distributed(self) -> bool:
        """Whether all ranks publish together."""
        return self._session.ranks is not None

    @property
    def run(self) -> str:
        """The run's path or URL, as it was given."""
        return self._session.run

    @property
    def run_id(self) -> str:
        """The run's id, which no other run has, wherever it is copied to."""
        return self._session.core.run_id

    async def __aenter__(self) -> Publisher:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            await asyncio.to_thread(self._close_within_exit_timeout)
            return
        try:
            await self.close_async()
        finally:
            if not self._session.is_closed:  # it was cancelled
                await asyncio.to_thread(self._end, "before it was interrupted")

    def __enter__(self) -> Publisher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._close_within_exit_timeout()
            return
        try:
            self.close()
        finally:
            self._end("before it was interrupted")  # by Ctrl-C, if it is still open

    def _close_within_exit_timeout(self) -> None:
        """Flushes for at most this time, and closes. An error is only logged, because the user must see the one that
        led here."""
        if self._session.is_closed or self._session.is_fork:
            return
        try:
            self.flush(self._session.exit_timeout)
        except WaitTimeoutError:
            pass  # what is unsent is logged below
        except Exception as error:  # a background read may fail with any exception
            _log.warning("the publisher of %s could not send everything: %s", self.run, error)
        finally:
            self._end(f"within {self._session.exit_timeout:g} s")

    def _end(self, when: str) -> None:
        """Closes at once, and logs what is not sent."""
        if self._session.is_closed or self._session.is_fork:
            return
        self._session.warn_of_unsent(when)
        self._session.close()

    def __repr__(self) -> str:
        state = " (closed)" if self._session.is_closed else ""
        return f"<Publisher of {self.run}: version {self.status.version}{state}>"


async def _in_thread(function: Callable[[], _T]) -> _T:
    """Calls it on a thread, which continues on the caller's stream and device of torch, if there is one."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return await asyncio.to_thread(function)
    stream = torch.cuda.current_stream()

    def on_stream() -> _T:
        with torch.cuda.stream(stream):
            return function()

    return await asyncio.to_thread(on_stream)
