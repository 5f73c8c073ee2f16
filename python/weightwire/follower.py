"""Following: holding an exact copy of a run's weights, and moving to newer versions."""

from __future__ import annotations

import asyncio
import functools
import os
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, overload

from weightwire import _arrays, _core
from weightwire._checks import seconds, whole_number
from weightwire._forks import Process
from weightwire._state import target_of
from weightwire.changes import TensorChange
from weightwire.errors import InvalidArgumentError, UnavailableError, WaitTimeout


@dataclass(frozen=True)
class FollowerStats:
    """How a follower stands just now."""

    version: int | None
    """The version that the target holds."""
    step: int | None
    digest: str | None
    """Of the state that the target holds: the same wherever that version is held."""
    staged: int | None
    """The version that the next apply leads to; the one held if nothing is staged."""
    newest: int | None
    """The newest version seen so far."""
    seconds_behind: float
    has_lease: bool
    waits_for: str
    bytes_fetched: int
    versions_applied: int
    anchors_loaded: int
    objects_fetched_again: int
    detours: int
    requests_bytes_received: int

    @property
    def versions_behind(self) -> int:
        if self.newest is None:
            return 0
        return self.newest + 1 if self.version is None else max(0, self.newest - self.version)


class Update:
    """A change of the target to a newer version: fetched, verified and staged, and not applied yet."""

    def __init__(self, follower: Follower, before: FollowerStats, after: FollowerStats) -> None:
        self._follower = follower
        self.from_version = before.version
        """The version that the target holds before; None if none."""
        assert after.staged is not None
        self.version: int = after.staged
        """The version that it holds after."""
        self.bytes_fetched = after.bytes_fetched - before.bytes_fetched
        self.seconds: float | None = None
        """How long apply() took."""

    @property
    def changes(self) -> list[TensorChange] | None:
        """What it changes, by tensor; None for a whole load, where everything may change. Only before it is applied.

        >>> import tempfile
        >>> import numpy as np
        >>> import weightwire as ww
        >>> weights = {"w": np.zeros(4, np.float32)}
        >>> bucket = tempfile.mkdtemp()
        >>> with ww.Publisher(bucket, weights) as publisher:
        ...     ticket = publisher.publish(step=0)
        ...     ticket = publisher.publish(1, {"w": np.array([0, 0, 1, 0], np.float32)})
        >>> with ww.Follower(bucket, weights) as follower:
        ...     (change,) = follower.poll().changes
        >>> change.name, change.positions, change.new_bits.view(np.float32)
        ('w', array([2]), array([1.], dtype=float32))
        """
        staged = self._follower._staged(self)
        if staged is None:
            return None
        return [
            TensorChange(name, dtype, shape, unit_bytes, whole, tuple(pieces))
            for name, dtype, shape, unit_bytes, whole, pieces in staged[1]
        ]

    @property
    def changes_layout(self) -> bool:
        """Whether names, types or shapes change too. Only before it is applied."""
        staged = self._follower._staged(self)
        return staged is not None and bool(staged[0])

    def apply(self) -> Update:
        """Writes it to the target. Nothing is written if it is not exact."""
        start = time.monotonic()
        self._follower._apply(self)
        self.seconds = time.monotonic() - start
        return self

    def undo(self) -> None:
        """Takes it back; the follower then stands still on the version before, until `stand_still(None)`. The first
        load cannot be taken back, nor any whole load of a mirror: what was there before is not kept."""
        self._follower._undo(self)

    def __repr__(self) -> str:
        return f"<Update from version {self.from_version} to {self.version}>"


class _Wanted:
    """What somebody waits for."""

    def __init__(self, version: int | None, timeout: float | None) -> None:
        self.version = None if version is None else whole_number("version", version)
        self.update: Update | None = None
        """None also where the version is held already."""
        self.trouble = ""
        self._timeout = timeout
        self._deadline = None if timeout is None else time.monotonic() + timeout

    def left(self) -> float | None:
        """Seconds; None if there is no end to them."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def pause(self, seconds: float) -> float:
        """How long to wait before the next look; raises if there is to be none."""
        if self._deadline is None:
            return seconds
        left = self._deadline - time.monotonic()
        if left <= 0:
            what = "a newer version" if self.version is None else f"version {self.version}"
            raise WaitTimeout(f"{what} did not come within {self._timeout} seconds{self.trouble}")
        return min(seconds, left)


class Follower:
    """Brings a target to newer versions of a run.

    `target` is a state dict or another mapping of names to arrays in host memory, which are written to in place; or the
    path of a directory, which becomes a mirror: a Hugging Face checkpoint that other programs can load. A target that
    holds a version already is recognized by its digest; otherwise the first update is a whole load. Where the way to
    a version is an anchor, `poll` itself loads it into a mirror: its files are replaced as a whole once they are
    complete and verified, and its update is in place when `poll` gives it.

    >>> import tempfile
    >>> import numpy as np
    >>> import weightwire as ww
    >>> bucket = tempfile.mkdtemp()
    >>> with ww.Publisher(bucket, {"w": np.arange(4, dtype=np.float32)}) as publisher:
    ...     ticket = publisher.publish(step=0)
    >>> weights = {"w": np.zeros(4, np.float32)}
    >>> follower = ww.Follower(bucket, weights)
    >>> update = follower.poll()
    >>> update.version, weights["w"]
    (0, array([0., 0., 0., 0.], dtype=float32))
    >>> update = update.apply()
    >>> weights["w"]
    array([0., 1., 2., 3.], dtype=float32)
    >>> follower.poll() is None
    True
    >>> follower.close()

    Arguments, all but the first two by name:

    name          what people see in `weightwire leases`
    adopt         recognize what the target holds by its digest; for a directory: take one that has files
    check         digest a directory in full before going on from it, as it does unless told not to; one that is
                  damaged is loaded anew by `poll`
    keep_lease    tell gc what is still needed; it goes on without where it may not write
    poll_seconds  between two questions for a newer version, where a method waits
    threads       to decode, digest and hash with; 0: one for each core
    bytes_per_second  at most from and to the bucket; 0: as fast as it goes
    """

    def __init__(
        self,
        run: str | os.PathLike[str],
        target: Mapping[str, Any] | str | os.PathLike[str],
        *,
        name: str = "",
        adopt: bool | None = None,
        check: bool | None = None,
        keep_lease: bool = True,
        poll_seconds: float = 2.0,
        threads: int = 0,
        bytes_per_second: int = 0,
    ) -> None:
        arrays = isinstance(target, Mapping)
        if not arrays and not isinstance(target, (str, os.PathLike)):
            raise InvalidArgumentError(
                f"cannot follow into a {type(target).__name__}: give a mapping of names to arrays, such as a module's "
                "state_dict(), or the path of a directory"
            )
        self._poll_seconds = seconds("poll_seconds", poll_seconds)
        self._pending: Update | None = None
        self._applied: Update | None = None
        self._loaded: Update | None = None
        self._limit: tuple[int | None, bool] = (None, False)  # as the user wants it
        self._steps_only = False
        self._core = _core.Follower(
            os.fspath(run),
            target_of(target) if isinstance(target, Mapping) else os.fspath(target),
            {
                "name": name,
                "adopt": arrays if adopt is None else adopt,
                "check": not arrays if check is None else bool(check),
                "keep_lease": keep_lease,
                "threads": whole_number("threads", threads),
                "bytes_per_second": whole_number("bytes_per_second", bytes_per_second),
            },
        )
        self._process = Process()

    @property
    def stats(self) -> FollowerStats:
        return FollowerStats(**self._core.status())

    @property
    def version(self) -> int | None:
        """The version that the target holds."""
        return self.stats.version

    def poll(self) -> Update | None:
        """Fetches, verifies and stages what is new; the change to the newest version, or None if there is nothing.

        Several versions become one change. A change that was not applied is covered by the next one.
        """
        return self._poll(None)

    def _poll(self, patience: float | None) -> Update | None:
        """`patience`: how many seconds trouble that may pass is waited out."""
        self._refuse_in_a_fork()
        before = self.stats
        has_update = self._core.poll(patience)
        after = self.stats
        if not has_update:
            self._pending = None
            if after.version != before.version and after.version is not None:  # a mirror was loaded
                self._loaded = Update(self, before, after)
                self._loaded.seconds = 0.0
                return self._loaded
            return None
        self._pending = Update(self, before, after)
        return self._pending

    @overload
    def wait(self, version: None = None, timeout: float | None = None) -> Update: ...
    @overload
    def wait(self, version: int, timeout: float | None = None) -> Update | None: ...
    def wait(self, version: int | None = None, timeout: float | None = None) -> Update | None:
        """The change that brings the target to at least `version`, or to any newer one than it holds.

        None if the target holds that version already. Raises `WaitTimeout` when the time is up. Trouble that may pass
        is waited out.
        """
        wanted = _Wanted(version, timeout)
        while not self._has(wanted):
            time.sleep(wanted.pause(self._poll_seconds))
        return wanted.update

    def __iter__(self) -> Iterator[Update]:
        """Every version that comes from now on, one at a time and without end, also while it stands still; apply each
        before the next."""
        while True:
            self._go_in_steps(True)
            try:
                update = self.wait()
            finally:
                self._go_in_steps(False)
            yield update

    async def poll_async(self) -> Update | None:
        """`poll` for an event loop."""
        return await asyncio.to_thread(self.poll)

    @overload
    async def wait_async(self, version: None = None, timeout: float | None = None) -> Update: ...
    @overload
    async def wait_async(self, version: int, timeout: float | None = None) -> Update | None: ...
    async def wait_async(self, version: int | None = None, timeout: float | None = None) -> Update | None:
        """`wait` for an event loop."""
        wanted = _Wanted(version, timeout)
        while not await asyncio.to_thread(self._has, wanted):
            await asyncio.sleep(wanted.pause(self._poll_seconds))
        return wanted.update

    async def __aiter__(self) -> AsyncIterator[Update]:
        while True:
            await asyncio.to_thread(self._go_in_steps, True)
            try:
                update = await self.wait_async()
            finally:
                await asyncio.to_thread(self._go_in_steps, False)
            yield update

    def _has(self, wanted: _Wanted) -> bool:
        """Whether what is wanted is there, after one look."""
        held = self.version
        if wanted.version is not None and held is not None and held >= wanted.version:
            return True
        try:
            update = self._poll(wanted.left())
            wanted.trouble = ""
        except UnavailableError as error:
            update, wanted.trouble = None, f": {error}"
        if update is None or (wanted.version is not None and update.version < wanted.version):
            return False
        wanted.update = update
        return True

    def _go_in_steps(self, steps_only: bool) -> None:
        """A wait leads to the next version and no further; afterwards all is as the user wants it, and an update that
        is staged stays so. Not while the iterator's user has it: who leaves a loop may do so for good."""
        self._steps_only = steps_only
        self._go_no_further()

    def _go_no_further(self) -> None:
        limit, back = self._limit
        held = self.version if self._steps_only else None
        if held is not None and (limit is None or held < limit):
            limit, back = held + 1, False
        self._core.stand_still(limit, back)

    def stand_still(self, version: int | None, *, back: bool = False) -> None:
        """Goes no further than this version; None: as far as there is. With `back`, a target that holds a later one is
        brought back to exactly this one by the next update."""
        self._limit = (None if version is None else whole_number("version", version), back)
        self._go_no_further()

    def check(self) -> None:
        """Digests the whole target, and raises `CorruptError` if it is not what it should be."""
        self._refuse_in_a_fork()
        self._core.check()

    def newest(self) -> int | None:
        """Asks for the newest version of the run, whatever `stand_still` says; None if there is none."""
        return self._core.newest()

    def close(self) -> None:
        """Gives the lease back. The target stays as it is."""
        if not self._process.is_a_fork:
            self._core.close()

    def _refuse_in_a_fork(self) -> None:
        if self._process.is_a_fork:
            raise InvalidArgumentError("a fork of the follower's process cannot follow: it has none of its threads")

    @classmethod
    async def open_async(
        cls, run: str | os.PathLike[str], target: Mapping[str, Any] | str | os.PathLike[str], **options: Any
    ) -> Follower:
        """`Follower(run, target, ...)` for an event loop: it asks the bucket, and may digest the target."""
        return await asyncio.to_thread(functools.partial(cls, run, target, **options))

    async def close_async(self) -> None:
        """`close` for an event loop."""
        await asyncio.to_thread(self.close)

    async def __aenter__(self) -> Follower:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close_async()

    def __enter__(self) -> Follower:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _staged(self, update: Update) -> tuple[bool, list[Any]] | None:
        if update is self._loaded:
            return None
        if update is not self._pending:
            raise InvalidArgumentError(f"what {update!r} changes is not known any more: it was applied, or is outdated")
        return self._core.staged()

    def _apply(self, update: Update) -> None:
        if update is self._loaded:  # is in place already
            self._loaded = None
            return
        if update is not self._pending:
            raise InvalidArgumentError(
                f"{update!r} cannot be applied: it was, or poll() was called again and gave another in its place"
            )
        self._core.apply()
        self._pending, self._applied = None, update

    def _undo(self, update: Update) -> None:
        if update is not self._applied:
            raise InvalidArgumentError(f"{update!r} cannot be taken back: it is not the last one applied")
        self._core.undo()
        self._pending = self._applied = None
        self._limit = (self.version, False)


async def load_async(
    run: str | os.PathLike[str],
    version: int | None = None,
    *,
    framework: Literal["numpy", "torch"] = "numpy",
    threads: int = 0,
) -> dict[str, Any]:
    """`load` for an event loop."""
    return await asyncio.to_thread(load, run, version, framework=framework, threads=threads)


def load(
    run: str | os.PathLike[str],
    version: int | None = None,
    *,
    framework: Literal["numpy", "torch"] = "numpy",
    threads: int = 0,
) -> dict[str, Any]:
    """The weights of a version, the newest by default, as a state dict in memory. Tied weights are there under each of
    their names, as the same array."""
    if framework not in ("numpy", "torch"):
        raise InvalidArgumentError('framework is "numpy" or "torch"')
    if version is not None:
        version = whole_number("version", version)
    tensors, aliases, _, _ = _core.load(os.fspath(run), version, whole_number("threads", threads))
    make = _arrays.to_numpy if framework == "numpy" else _arrays.to_torch
    state = {name: make(dtype, shape, data) for name, dtype, shape, data in tensors}
    state.update({alias: state[name] for alias, name in aliases.items()})
    return state
