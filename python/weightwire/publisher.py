"""Publishing: every optimizer step becomes a version of a run, without waiting for the network."""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from weightwire import _core
from weightwire._carried import write_carried
from weightwire._lora import Lora, is_peft
from weightwire._ranks import Ranks, is_distributed
from weightwire._state import state_of, unwrap
from weightwire.errors import InvalidArgumentError, WaitTimeout

_log = logging.getLogger("weightwire")
_SAY_SECONDS = 2.0  # how long trouble lasts before it is said


@dataclass(frozen=True)
class TicketStats:
    """What is known of a publish just now."""

    stage: str
    """queued, spooled, uploading, committed, already_published, skipped or failed."""
    version: int | None
    step: int
    bytes: int
    """Of the delta; 0 for a version that is an anchor only."""
    changed: int
    """Elements (bytes of packed types)."""
    seconds: dict[str, float] = field(default_factory=dict)
    """From the return of publish() to each stage."""
    error: str | None = None
    """Why it failed, or why the last attempt did, which is made again."""


class Ticket:
    """What became of one call of `Publisher.publish`. Safe to drop."""

    def __init__(self, core: _core.Ticket) -> None:
        self._core = core

    @property
    def stats(self) -> TicketStats:
        """A copy of what is known now."""
        return TicketStats(**self._core.look())

    @property
    def version(self) -> int | None:
        """The version it makes; None if it was skipped."""
        return self.stats.version

    @property
    def done(self) -> bool:
        """Whether its stage is the last one."""
        return self.stats.stage not in ("queued", "spooled", "uploading")

    def wait(self, timeout: float | None = None) -> TicketStats:
        """Until the version is committed. Raises if it failed, and `WaitTimeout` after `timeout` seconds."""
        if not self._core.wait(timeout):
            stats = self.stats
            why = f": {stats.error}" if stats.error else ""
            raise WaitTimeout(f"version {stats.version} is still {stats.stage} after {timeout} seconds{why}")
        return self.stats

    async def wait_async(self, timeout: float | None = None) -> TicketStats:
        """`wait` for an event loop."""
        return await asyncio.to_thread(self.wait, timeout)

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


class Publisher:
    """Makes versions of a run from a model's weights.

    `model` is a torch module, a state dict, or any mapping of names to arrays; it is read anew by each `publish`.
    `publish` returns as soon as the weights are compared with the version before and the difference is encoded; they
    may then change again. Upload and commit follow in the background, in order.

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
    carry           a directory whose configuration and tokenizer files go with every anchor; by default, those of a
                    transformers model and of `tokenizer`
    state           a directory for what a restart needs: the versions not sent yet and, with base="file", the base
                    copy. Without it both are in memory
    when_full       what to do when `spool_versions` versions wait to be sent: "wait" for room, or "skip": the next
                    version covers both steps
    single_writer   go on where the store cannot keep two publishers apart
    distributed     publish from all ranks of torch.distributed together, each its own shards; by default if there is a
                    process group of several ranks. All ranks make the publisher, and call publish equally often
    rank_timeout    seconds that a rank may be silent before the others give a call of publish up
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
        state: str | os.PathLike[str] | None = None,
        base: Literal["memory", "file"] = "memory",
        when_full: Literal["wait", "skip"] = "wait",
        spool_versions: int = 16,
        single_writer: bool = False,
        drop_lost_versions: bool = False,
        threads: int = 0,
        bytes_per_second: int = 0,
        distributed: bool | None = None,
        rank_timeout: float = 600,
    ) -> None:
        if base not in ("memory", "file") or when_full not in ("wait", "skip"):
            raise InvalidArgumentError('base is "memory" or "file", and when_full is "wait" or "skip"')
        if base == "file" and state is None:
            raise InvalidArgumentError('base="file" needs a directory to lie in: give state=')
        if lora not in ("adapter", "merged"):
            raise InvalidArgumentError('lora is "adapter" or "merged"')
        self._model = model
        self._dtype = dtype
        self._lora = lora
        self._step = -1
        many = is_distributed() if distributed is None else distributed
        if many and not is_distributed():
            raise InvalidArgumentError("distributed=True takes a process group of torch.distributed of several ranks")
        if many and (state is not None or when_full == "skip"):
            raise InvalidArgumentError('with several ranks there is no state= directory, and no when_full="skip"')
        # Every anchor reads them anew, so they stay as long as the publisher.
        self._carried = tempfile.TemporaryDirectory(prefix="weightwire-")
        if carry is None:
            carry = write_carried(model, tokenizer, dtype, lora, Path(self._carried.name))
        options = {
            "anchor_every": anchor_every,
            "anchor_percent": anchor_percent,
            "spool_versions": spool_versions,
            "skip_when_full": when_full == "skip",
            "state": None if state is None else os.fspath(state),
            "base_in_file": base == "file",
            "carried": None if carry is None else os.fspath(carry),
            "adapter": lora == "adapter" and is_peft(unwrap(model)),
            "single_writer": single_writer,
            "drop_lost_versions": drop_lost_versions,
            "threads": threads,
            "bytes_per_second": bytes_per_second,
        }
        self._ranks: Ranks | None = None
        self._core: _core.Publisher | _core.RankPublisher
        if many:
            self._ranks = Ranks(os.fspath(run), model, dtype, lora, options, rank_timeout)
            self._core = self._ranks.core
        else:
            self._core = _core.Publisher(os.fspath(run), options)
        for warning in self.stats.warnings:
            _log.warning(warning)

    def publish(self, step: int | None = None, model: Any = None) -> Ticket:
        """Makes the next version from the weights as they are now, and returns once they may change again.

        `step` is information for people, one more than the last by default. `model` replaces the one given at the
        start, for this call.
        """
        model = self._model if model is None else model
        if model is None:
            raise InvalidArgumentError("nothing to publish: the publisher was made without a model")
        self._step = self._step + 1 if step is None else step
        if self._ranks is not None:
            return Ticket(self._ranks.publish(model, self._step))
        assert isinstance(self._core, _core.Publisher)
        state = state_of(model, self._dtype, self._lora)
        return Ticket(self._core.publish(state.tensors, state.aliases, self._step))

    def drain(self, timeout: float | None = None) -> None:
        """Until everything is in the bucket, anchors too. Raises `WaitTimeout` if it takes longer.

        What goes wrong meanwhile is tried again, and said once in the log.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        said = None
        while True:
            left = _SAY_SECONDS if deadline is None else min(_SAY_SECONDS, deadline - time.monotonic())
            if self._core.drain(max(0.0, left)):
                return
            stats = self.stats
            trouble = stats.last_error or stats.anchor_error
            if trouble is not None and trouble != said:
                _log.warning("%s; trying again", trouble)
                said = trouble
            if deadline is not None and time.monotonic() >= deadline:
                why = f": {trouble}" if trouble else ""
                raise WaitTimeout(f"{stats.versions_waiting} versions still wait to be sent after {timeout} s{why}")

    def close(self) -> None:
        """Ends at once. What has not been sent is in the state directory, if there is one, else lost: drain first."""
        if self._ranks is not None:
            self._ranks.close()
        self._core.close()
        self._carried.cleanup()

    @property
    def stats(self) -> PublisherStats:
        return PublisherStats(**self._core.status())

    @property
    def run_id(self) -> str:
        return self._core.run_id

    def __enter__(self) -> Publisher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After an error, what was published before it still gets a chance, but not for ever.
        try:
            self.drain(None if kind is None else 30)
        except WaitTimeout:
            if kind is None:
                raise
        finally:
            self.close()
