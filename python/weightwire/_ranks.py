"""Publishing from several ranks of torch.distributed: each compares, encodes and uploads its own shards, and rank 0
commits. Collectives are used in the constructor alone, which all ranks call together; afterwards the ranks talk over a
TCPStore of their own, from a thread of their own."""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import re
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from weightwire import _core, errors
from weightwire._lora import Lora
from weightwire._pieces import BLOCK
from weightwire._published import Lazy
from weightwire._shards import Held, held_of
from weightwire._state import State, items_of, own_buffers, roles_of, tensors_of, watched
from weightwire.errors import InvalidArgumentError, UnavailableError, WeightwireError

_SHORTEST_PAUSE = 0.002
_LONGEST_PAUSE = 0.05
_IDLE_PAUSE = 0.5  # something to put ends it
# A connection on which nothing is said for long is cut by many a firewall.
_LONGEST_SILENCE = 30.0
_CONNECT_SECONDS = 2.0
_LONGEST_CONNECT_PAUSE = 10.0
_CHANGES = "changes"  # how often something was put on the board


class Part(NamedTuple):
    """A box of a tensor as it is published."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    """Of the whole tensor."""
    start: tuple[int, ...]
    extent: tuple[int, ...]


class Failure(NamedTuple):
    """What went wrong on a rank, for the others."""

    kind: str
    message: str


class Announcement(NamedTuple):
    """What a rank could send: by name of the model's tensor, what becomes of its box."""

    host: str
    parts: dict[str, list[Part]]
    aliases: dict[str, str]
    error: Failure | None = None


class Settled(NamedTuple):
    """What the core is given."""

    run: str
    options: dict[str, Any]
    rank_timeout: float


class Plan(NamedTuple):
    """Who sends what: the same on all ranks, but for the last two."""

    layout: list[tuple[str, str, tuple[int, ...]]]
    aliases: dict[str, str]
    sources: set[str]
    """The model's tensors that this rank sends its box of."""
    boxes: list[tuple[str, tuple[int, ...], tuple[int, ...]]]


def is_distributed() -> bool:
    """Whether there is a process group of several ranks."""
    distributed = sys.modules.get("torch.distributed")
    return (
        distributed is not None
        and distributed.is_available()
        and distributed.is_initialized()
        and distributed.get_world_size() > 1
    )


def _scale_part(item: tuple[Any, ...], held: Held, name: str) -> Part:
    """The scales of a box of an fp8 tensor: blocks must not be cut."""
    for start, extent, size in zip(held.start, held.extent, held.shape, strict=True):
        end = start + extent
        if start % BLOCK != 0 or (end % BLOCK != 0 and end != size):
            raise InvalidArgumentError(
                f"'{name}' cannot be published as fp8: a rank holds {start} to {end} of {size} in one dimension, which "
                f"cuts a block of {BLOCK}; shard it at multiples of {BLOCK}, or keep it as it is (Fp8(keep=...))"
            )
    return Part(
        item[0],
        item[1],
        tuple(-(-size // BLOCK) for size in held.shape),
        tuple(start // BLOCK for start in held.start),
        tuple(item[2]),
    )


def parts_of(model: Any, tensors: dict[str, Any], dtype: Any) -> dict[str, list[Part]]:
    """What this rank could send of a model's tensors."""
    roles = roles_of(model, tensors, dtype)
    parts: dict[str, list[Part]] = {}
    for name, tensor in tensors.items():
        held = held_of(name, tensor)
        if held is None:
            continue
        items = items_of({name: held.data}, dtype, roles)
        parts[name] = [Part(items[0][0], items[0][1], held.shape, held.start, held.extent)]
        parts[name] += [_scale_part(item, held, name) for item in items[1:]]
    return parts


def _bytes(part: Part) -> int:
    bits = re.search(r"\d+", part.dtype)
    size = int(bits.group()) if bits else 8
    for extent in part.extent:
        size *= extent
    return size // 8


def plan(announcements: list[Announcement], rank: int) -> Plan:
    """Every box that several ranks hold is sent by one of them, so that all have about as many bytes to send."""
    aliases: dict[str, str] = {}
    for announcement in announcements:
        aliases.update(announcement.aliases)
    layout: dict[str, tuple[str, tuple[int, ...]]] = {}
    holders: dict[tuple[str, tuple[int, ...], tuple[int, ...]], list[int]] = {}
    sizes: dict[tuple[str, tuple[int, ...], tuple[int, ...]], int] = {}
    for holder, announcement in enumerate(announcements):
        for source, parts in announcement.parts.items():
            # A rank that holds nothing of a tied tensor cannot know of the tie.
            if source in aliases:
                continue
            for part in parts:
                known = layout.setdefault(part.name, (part.dtype, part.shape))
                if known != (part.dtype, part.shape):
                    raise InvalidArgumentError(
                        f"the ranks disagree about '{part.name}': {part.dtype} {part.shape} on rank {holder}, "
                        f"{known[0]} {known[1]} on another"
                    )
            key = (source, parts[0].start, parts[0].extent)
            holders.setdefault(key, []).append(holder)
            sizes[key] = sum(_bytes(part) for part in parts)
    loads = [0] * len(announcements)
    owners = {}
    for key in sorted(holders, key=lambda key: (len(holders[key]) > 1, -sizes[key], key)):
        owner = min(holders[key], key=lambda candidate: (loads[candidate], candidate))
        loads[owner] += sizes[key]
        owners[key] = owner
    mine = {key[0] for key, owner in owners.items() if owner == rank}
    boxes = [
        (part.name, part.start, part.extent)
        for source in sorted(mine)
        for part in announcements[rank].parts[source]
        if 0 not in part.extent
    ]
    tensors = [(name, dtype, shape) for name, (dtype, shape) in sorted(layout.items())]
    return Plan(tensors, aliases, mine, boxes)


class _Pump:
    """Brings messages between the core and the store, in a thread of its own. A connection that breaks is made again,
    by `connect`: what was said is still on the board, and what was not is said then."""

    def __init__(self, core: _core.RankPublisher, store: Any, rank: int, connect: Callable[[], Any]) -> None:
        self._core = core
        self._store = store
        self._server = store if rank == 0 else None  # lives as long as this
        self._rank = rank
        self._connect = connect
        self._said = time.monotonic()
        self._changes = -1
        self._absent: set[str] = set()  # keys that were not there after so many changes
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="weightwire-ranks", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=2)

    def _run(self) -> None:
        try:
            self._go_on()
        except WeightwireError:
            if not self._stop.is_set():  # else nobody waited for this thread any more, and the core is closed
                raise

    def _go_on(self) -> None:
        pause = _SHORTEST_PAUSE
        while not self._stop.is_set():
            outgoing, wanted, unneeded = self._core.board_work(pause)
            try:
                moved = self._move(outgoing, wanted, unneeded)
            except Exception as error:  # whatever torch raises
                self._find_again(error)
                continue
            self._core.board_done()
            if moved or outgoing:
                pause = _SHORTEST_PAUSE
            else:
                pause = _IDLE_PAUSE if not wanted else min(_LONGEST_PAUSE, pause * 1.5)

    def _find_again(self, error: Exception) -> None:
        """Until the store is reached again. If that does not work at once, the store is gone, and with it rank 0."""
        told = False
        pause = _IDLE_PAUSE
        while not self._stop.is_set():
            try:
                self._store = self._connect()
            except Exception:
                if not told:
                    self._core.lose_touch(f"rank {self._rank} cannot reach rank 0 any more ({_first_line(error)})")
                told = True
                self._stop.wait(pause)
                pause = min(_LONGEST_CONNECT_PAUSE, 2 * pause)
                continue
            if told:
                self._core.regain_touch()
            return

    def _move(self, outgoing: list[tuple[str, str]], wanted: list[str], unneeded: list[str]) -> bool:
        if outgoing or wanted or unneeded:
            self._said = time.monotonic()
        elif time.monotonic() - self._said > _LONGEST_SILENCE:
            self._said = time.monotonic()
            self._store.add(_CHANGES, 0)
        for key, text in outgoing:
            self._store.set(key, text)
        if outgoing:
            self._store.add(_CHANGES, 1)
        moved = False
        # One question is enough as long as nobody has put anything: rank 0 waits for keys of all ranks.
        changes = self._store.add(_CHANGES, 0) if wanted else self._changes
        if changes != self._changes:
            self._changes, self._absent = changes, set()
        for key in wanted:
            if key in self._absent:
                continue
            if self._store.check([key]):
                self._core.deliver(key, self._store.get(key).decode())
                moved = True
            else:
                self._absent.add(key)
        for key in unneeded:
            self._store.delete_key(key)
        return moved


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _close(pump: _Pump, core: _core.RankPublisher, process: int) -> None:
    if os.getpid() != process:
        return  # a fork, which has neither the thread nor the connection
    pump.stop()
    core.close()


class Ranks:
    """This rank's publisher. All ranks make theirs together.

    `settle` says what the core is to be given, and raises if that cannot be; it is called where a failure is told to
    all ranks. Its argument is whether this rank writes anchors' other files.
    """

    def __init__(
        self, settle: Callable[[bool], Settled], model: Any, dtype: Any, lora: Lora, meeting_seconds: float
    ) -> None:
        import torch.distributed as dist

        self._model = model
        self._dtype = dtype
        self._lora = lora
        self.rank = dist.get_rank()
        ranks = dist.get_world_size()
        self._names: set[str] = set()
        self._aliases: dict[str, str] = {}
        _meet(self.rank, ranks, meeting_seconds)
        settled, announcements = self._announce(settle, model, ranks)
        self._plan = plan(announcements, self.rank)
        hosts = [announcement.host for announcement in announcements]
        options = {**settled.options, "rank": self.rank, "ranks": ranks, "rank_timeout": settled.rank_timeout}
        if options["threads"] == 0:
            options["threads"] = max(1, (os.cpu_count() or 1) // hosts.count(hosts[self.rank]))
        self.core, store, connect = self._open(settled.run, options, hosts, settled.rank_timeout)
        self._pump = _Pump(self.core, store, self.rank, connect)
        # A thread that wakes up while the interpreter ends would end it badly.
        self._finish = weakref.finalize(self, _close, self._pump, self.core, os.getpid())
        atexit.register(self._finish)

    def _announce(
        self, settle: Callable[[bool], Settled], model: Any, ranks: int
    ) -> tuple[Settled, list[Announcement]]:
        import torch.distributed as dist

        host = _machine()
        settled: Settled | None = None
        own_error: BaseException | None = None
        try:
            if model is None:
                raise InvalidArgumentError("a publisher of several ranks must be given the model when it is made")
            settled = settle(self.rank == 0)
            tensors, self._aliases = tensors_of(model, self._lora)
            self._names = {*tensors, *self._aliases}
            announcement = Announcement(host, parts_of(model, tensors, self._dtype), self._aliases)
        except BaseException as error:  # a Ctrl-C too: the others wait for this rank
            announcement = Announcement(host, {}, {}, _failure(error))
            own_error = error
        announcements: list[Any] = [None] * ranks
        dist.all_gather_object(announcements, announcement)
        if own_error is not None:
            raise own_error
        _raise_first([one.error for one in announcements])
        assert settled is not None
        return settled, announcements

    def _open(
        self, run: str, options: dict[str, Any], hosts: list[str], timeout: float
    ) -> tuple[_core.RankPublisher, Any, Callable[[], Any]]:
        import torch.distributed as dist

        core: _core.RankPublisher | None = None
        store: Any = None
        own_error: BaseException | None = None
        told: list[Any] = [None]
        if self.rank == 0:
            try:
                core = self._make(run, options, "")
                store = _serve(timeout)
                # The address that the others use already, if any is known.
                host = "127.0.0.1" if len(set(hosts)) == 1 else os.environ.get("MASTER_ADDR", socket.gethostname())
                told = [(host, store.port, core.start())]
            except BaseException as error:
                own_error = error
        dist.broadcast_object_list(told, src=0)
        if self.rank != 0 and told[0] is not None:
            try:
                host, port, start = told[0]
                store = _connect(host, port, timeout, timeout)
                core = self._make(run, options, start)
            except BaseException as error:
                own_error = error
        failures: list[Any] = [None] * len(hosts)
        dist.all_gather_object(failures, None if own_error is None else _failure(own_error))
        if own_error is not None:
            raise own_error
        _raise_first(failures)
        assert core is not None
        host, port, _ = told[0]
        return core, store, lambda: _connect(host, port, _CONNECT_SECONDS, timeout)

    def _make(self, run: str, options: dict[str, Any], start: str) -> _core.RankPublisher:
        return _core.RankPublisher(run, options, self._plan.layout, self._plan.aliases, self._plan.boxes, start)

    @property
    def elements(self) -> int:
        """Of all ranks together."""
        return sum(math.prod(shape) for _, _, shape in self._plan.layout)

    def items(self, model: Any, *, goes_on: bool = False) -> State:
        """What this rank publishes of a model, for the core; as `state_of`, but for the aliases, which are agreed
        upon."""
        tensors, aliases = tensors_of(model, self._lora)
        self._check_names(tensors, aliases)
        roles = roles_of(model, tensors, self._dtype, self._model)
        mine: dict[str, Any] = {}
        whole: dict[str, Any] = {}
        for name in self._plan.sources:
            held = held_of(name, tensors[aliases.get(name, name)])
            if held is None:
                raise InvalidArgumentError(f"this rank holds nothing of '{name}' any more: make a new publisher")
            if 0 not in held.extent:
                mine[name] = held.data
                whole[name] = tensors[aliases.get(name, name)]
        goes_on = goes_on and not any(isinstance(tensor, Lazy) for tensor in mine.values())
        own = own_buffers(model, mine) if goes_on else mine
        return State(items_of(own, self._dtype, roles, goes_on=goes_on), {}, watched(whole, mine, own), goes_on)

    def _check_names(self, tensors: dict[str, Any], aliases: dict[str, str]) -> None:
        """The names, and which of them are tied, were agreed upon when the publisher was made."""
        names = {*tensors, *aliases}
        for name in sorted(self._names ^ names):
            what = "is not there any more" if name in self._names else "was not there when the publisher was made"
            raise InvalidArgumentError(f"'{name}' {what}: make a new publisher")
        for name, kept in sorted(self._aliases.items()):
            if aliases.get(name, name) != aliases.get(kept, kept):
                raise InvalidArgumentError(f"'{name}' and '{kept}' are not tied any more: make a new publisher")

    def refuse(self, step: int, error: BaseException) -> None:
        """Instead of a call of the core's publish: it fails on all ranks, which must not wait for this one."""
        with contextlib.suppress(WeightwireError):  # it is closed
            self.core.refuse(step, _first_line(error))

    def close(self) -> None:
        self._finish()
        atexit.unregister(self._finish)


def _machine() -> str:
    """Where this process runs. Machines that were cloned may have one name."""
    boot = ""
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    return f"{socket.gethostname()} {boot}"


def _failure(error: BaseException) -> Failure:
    return Failure(type(error).__name__, _first_line(error))


def _raise_first(failures: list[Failure | None]) -> None:
    for rank, failure in enumerate(failures):
        if failure is not None:
            kind = getattr(errors, failure.kind, errors.UnavailableError)
            raise kind(f"rank {rank}: {failure.message}")


def _meet(rank: int, ranks: int, timeout: float) -> None:
    """Until all ranks are here. A collective that some never come to would wait for as long as the process group lets
    it, and then say nothing that helps."""
    import datetime

    from torch.distributed import distributed_c10d

    store = distributed_c10d._get_default_store()
    number = store.add(f"weightwire/publishers of rank {rank}", 1)
    keys = [f"weightwire/publisher {number} of rank {other}" for other in range(ranks)]
    store.set(keys[rank], "here")
    try:
        store.wait(keys, datetime.timedelta(seconds=timeout))
    except RuntimeError:  # torch's, when the time is up
        missing = [str(other) for other, key in enumerate(keys) if not store.check([key])]
        if not missing:
            return
        # As if this rank had not come: the next time, all may.
        store.delete_key(keys[rank])
        store.add(f"weightwire/publishers of rank {rank}", -1)
        raise UnavailableError(
            f"after {timeout:g} s only some of {ranks} ranks make a publisher, and not rank {', '.join(missing[:8])}"
            f"{' and others' if len(missing) > 8 else ''}: make it on all ranks, or give distributed=False"
        ) from None


def _serve(timeout: float) -> Any:
    import datetime

    import torch.distributed as dist

    seconds = datetime.timedelta(seconds=timeout)
    return dist.TCPStore("0.0.0.0", 0, is_master=True, wait_for_workers=False, timeout=seconds)


def _connect(host: str, port: int, connect_seconds: float, timeout: float) -> Any:
    import datetime

    import torch.distributed as dist

    seconds = datetime.timedelta(seconds=connect_seconds)
    store = dist.TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=seconds)
    store.set_timeout(datetime.timedelta(seconds=timeout))
    return store
