"""This rank's publisher among several ranks of torch.distributed: each rank compares, encodes and uploads its own
shards, and rank 0 commits. Collectives are used in the constructor only, which all ranks call together; later the ranks
talk over a board (_rank_board.py)."""

from __future__ import annotations

import atexit
import contextlib
import datetime
import math
import os
import socket
import weakref
from collections.abc import Callable
from typing import Any

from weightwire import _core, errors
from weightwire._dtensor import local_shard
from weightwire._extra_files import ExtraFiles
from weightwire._forks import OwnerProcess
from weightwire._model_state import ModelState, make_state, roles_of, tensors_of
from weightwire._publisher_options import CoreOptions, PublisherArguments, RankOptions
from weightwire._rank_board import BoardPump, connect_board, first_line, serve_board
from weightwire._rank_plan import Announcement, Failure, boxes_of, make_plan
from weightwire.errors import InvalidArgumentError, UnavailableError, WeightwireError


class RankGroup:
    """All ranks make theirs together. Every rank raises if one of them fails."""

    def __init__(self, run: str, options: PublisherArguments, extra_files: ExtraFiles) -> None:
        import torch.distributed as dist

        self._model = options.model
        self._dtype = options.dtype
        self._lora = options.lora
        self.rank = dist.get_rank()
        ranks = dist.get_world_size()
        self._names: set[str] = set()
        self._aliases: dict[str, str] = {}
        timeout = options.rank_timeout
        is_number = isinstance(timeout, (int, float)) and timeout > 0
        # An invalid timeout is refused later, by all ranks together.
        _meet(self.rank, ranks, timeout if is_number else _core.RANK_DEADLINE_SECONDS)
        core_options, announcements = self._announce(options, extra_files, ranks)
        self._plan = make_plan(announcements, self.rank)
        hosts = [announcement.host for announcement in announcements]
        if core_options["threads"] == 0:
            core_options["threads"] = max(1, (os.cpu_count() or 1) // hosts.count(hosts[self.rank]))
        rank_options: RankOptions = {**core_options, "rank": self.rank, "ranks": ranks}
        self.core, store, connect = self._open(run, rank_options, hosts)
        self._pump = BoardPump(self.core, store, self.rank, connect)
        # At exit too, because a thread that wakes up while the interpreter ends would crash it.
        self.finish = weakref.finalize(self, _close, self._pump, self.core, OwnerProcess())
        """Ends the thread and the core, once."""
        atexit.register(self.finish)

    def _announce(
        self, options: PublisherArguments, extra_files: ExtraFiles, ranks: int
    ) -> tuple[CoreOptions, list[Announcement]]:
        """Checks the arguments, and tells all ranks what this one holds, or why it cannot publish."""
        import torch.distributed as dist

        host = _machine()
        core_options: CoreOptions | None = None
        own_error: BaseException | None = None
        try:
            if options.model is None:
                raise InvalidArgumentError("a publisher of several ranks must be given the model when it is made")
            core_options = options.for_core(extra_files if self.rank == 0 else None)
            tensors, self._aliases = tensors_of(options.model, self._lora)
            self._names = {*tensors, *self._aliases}
            announcement = Announcement(host, boxes_of(options.model, tensors, self._dtype), self._aliases)
        except BaseException as error:  # Ctrl-C too, because the others wait for this rank
            announcement = Announcement(host, {}, {}, _failure(error))
            own_error = error
        announcements: list[Any] = [None] * ranks
        dist.all_gather_object(announcements, announcement)
        if own_error is not None:
            raise own_error
        _raise_first([one.error for one in announcements])
        assert core_options is not None
        return core_options, announcements

    def _open(
        self, run: str, options: RankOptions, hosts: list[str]
    ) -> tuple[_core.RankPublisher, Any, Callable[[], Any]]:
        """Opens rank 0's publisher and board first, and then the others'."""
        import torch.distributed as dist

        timeout = options["rank_timeout"]
        core: _core.RankPublisher | None = None
        store: Any = None
        own_error: BaseException | None = None
        told: list[Any] = [None]
        if self.rank == 0:
            try:
                core = self._make_core(run, options, "")
                store = serve_board(timeout)
                # The address that the others already use for torch, if it is known.
                host = "127.0.0.1" if len(set(hosts)) == 1 else os.environ.get("MASTER_ADDR", socket.gethostname())
                told = [(host, store.port, core.start())]
            except BaseException as error:
                own_error = error
        dist.broadcast_object_list(told, src=0)
        if self.rank != 0 and told[0] is not None:
            try:
                host, port, start = told[0]
                store = connect_board(host, port, timeout, connect_seconds=timeout)
                core = self._make_core(run, options, start)
            except BaseException as error:
                own_error = error
        failures: list[Any] = [None] * len(hosts)
        dist.all_gather_object(failures, None if own_error is None else _failure(own_error))
        if own_error is not None:
            raise own_error
        _raise_first(failures)
        assert core is not None
        host, port, _ = told[0]
        return core, store, lambda: connect_board(host, port, timeout)

    def _make_core(self, run: str, options: RankOptions, start: str) -> _core.RankPublisher:
        return _core.RankPublisher(run, options, self._plan.layout, self._plan.aliases, self._plan.boxes, start)

    @property
    def elements(self) -> int:
        """The number of elements of all ranks together."""
        return sum(math.prod(shape) for _, _, shape in self._plan.layout)

    def state_of(self, model: Any, *, in_background: bool = False) -> ModelState:
        """The shards that this rank sends of a model. The aliases are empty, because the plan has them."""
        tensors, aliases = tensors_of(model, self._lora)
        self._check_names(tensors, aliases)
        roles = roles_of(model, tensors, self._dtype, self._model)
        local: dict[str, Any] = {}
        originals: dict[str, Any] = {}
        for name in self._plan.sources:
            tensor = tensors[aliases.get(name, name)]
            shard = local_shard(name, tensor)
            if shard is None:
                raise InvalidArgumentError(f"this rank holds nothing of '{name}' any more: make a new publisher")
            if 0 not in shard.extent:
                local[name], originals[name] = shard.data, tensor
        return make_state(model, local, originals, self._dtype, roles, {}, in_background=in_background)

    def _check_names(self, tensors: dict[str, Any], aliases: dict[str, str]) -> None:
        """Raises unless names and ties are those that the ranks announced."""
        names = {*tensors, *aliases}
        for name in sorted(self._names ^ names):
            what = "is not there any more" if name in self._names else "was not there when the publisher was made"
            raise InvalidArgumentError(f"'{name}' {what}: make a new publisher")
        for name, kept in sorted(self._aliases.items()):
            if aliases.get(name, name) != aliases.get(kept, kept):
                raise InvalidArgumentError(f"'{name}' and '{kept}' are not tied any more: make a new publisher")

    def refuse(self, step: int, error: BaseException) -> None:
        """In place of a call of publish: fails it on all ranks, so that the others do not wait for this one."""
        with contextlib.suppress(WeightwireError):  # it is closed
            self.core.refuse(step, first_line(error))

    def close(self) -> None:
        self.finish()
        atexit.unregister(self.finish)


def _close(pump: BoardPump, core: _core.RankPublisher, process: OwnerProcess) -> None:
    if process.is_a_fork:  # it has neither the thread nor the connection
        return
    pump.stop()
    core.close()


def _machine() -> str:
    """Identifies the machine of this process. The name is not enough, because cloned machines may share one."""
    boot = ""
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    return f"{socket.gethostname()} {boot}"


def _failure(error: BaseException) -> Failure:
    return Failure(type(error).__name__, first_line(error))


def _raise_first(failures: list[Failure | None]) -> None:
    for rank, failure in enumerate(failures):
        if failure is not None:
            kind = getattr(errors, failure.kind, errors.UnavailableError)
            raise kind(f"rank {rank}: {failure.message}")


def _meet(rank: int, ranks: int, timeout: float) -> None:
    """Waits until every rank has called this. Unlike a collective, it names the missing ranks on timeout."""
    from torch.distributed import distributed_c10d

    store = distributed_c10d._get_default_store()
    number = store.add(f"weightwire/publishers of rank {rank}", 1)
    keys = [f"weightwire/publisher {number} of rank {other}" for other in range(ranks)]
    store.set(keys[rank], "here")
    try:
        store.wait(keys, datetime.timedelta(seconds=timeout))
    except RuntimeError:  # torch's, on timeout
        missing = [str(other) for other, key in enumerate(keys) if not store.check([key])]
        if not missing:
            return
        # Undo, as if this rank had not come, so that all may meet the next time.
        store.delete_key(keys[rank])
        store.add(f"weightwire/publishers of rank {rank}", -1)
        raise UnavailableError(
            f"after {timeout:g} s only some of {ranks} ranks make a publisher, and not rank {', '.join(missing[:8])}"
            f"{' and others' if len(missing) > 8 else ''}: make it on all ranks, or give distributed=False"
        ) from None
