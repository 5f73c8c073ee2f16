"""Following: holding an exact copy of a run's weights, and moving to newer versions."""

from __future__ import annotations

import asyncio
import functools
import os
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, overload

from weightwire import _core
from weightwire._arguments import seconds, whole_number
from weightwire._deadline import Deadline
from weightwire._forks import OwnerProcess
from weightwire._target_arrays import target_arrays
from weightwire._update import Update
from weightwire.errors import InvalidArgumentError, UnavailableError, WaitTimeoutError


@dataclass(frozen=True)
class FollowerStats:
    """How a follower currently stands."""

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


class _Wait:
    """One call of `wait`: the wanted version, the deadline and the result."""

    def __init__(self, version: int | None, timeout: float | None) -> None:
        self.version = None if version is None else whole_number("version", version)
        self.update: Update | None = None
        """None also if the target holds the version already."""
        self.trouble = ""
        self.deadline = Deadline(timeout)

    def pause(self, seconds: float) -> float:
        """How long to wait before the next poll. Raises on timeout."""
        if self.deadline.is_over:
            what = "a newer version" if self.version is None else f"version {self.version}"
            raise WaitTimeoutError(f"{what} did not come within {self.deadline.timeout} seconds{self.trouble}")
        return self.deadline.left(seconds)


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

    name          what people see in `weightwire followers`
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
        poll_seconds: float = _core.POLL_SECONDS,
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
        self._pin: tuple[int | None, bool] = (None, False)  # as the user wants it
        self._stops_at_next = False
        self._core = _core.Follower(
            os.fspath(run),
            target_arrays(target) if isinstance(target, Mapping) else os.fspath(target),
            {
                "name": name,
                "adopt": arrays if adopt is None else adopt,
                "check": not arrays if check is None else bool(check),
                "keep_lease": keep_lease,
                "threads": whole_number("threads", threads),
                "bytes_per_second": whole_number("bytes_per_second", bytes_per_second),
            },
        )
        self._process = OwnerProcess()

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

        None if the target holds that version already. Raises `WaitTimeoutError` when the time is up. Trouble that
        may pass is waited out.
        """
        wait = _Wait(version, timeout)
        while not self._try(wait):
            time.sleep(wait.pause(self._poll_seconds))
        return wait.update

    def __iter__(self) -> Iterator[Update]:
        """Yields every version from now on, one at a time and without end; apply each before the next. Waits while the
        follower is pinned."""
        while True:
            self._stop_at_next(True)
            try:
                update = self.wait()
            finally:
                self._stop_at_next(False)
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
        wait = _Wait(version, timeout)
        while not await asyncio.to_thread(self._try, wait):
            await asyncio.sleep(wait.pause(self._poll_seconds))
        return wait.update

    async def __aiter__(self) -> AsyncIterator[Update]:
        while True:
            await asyncio.to_thread(self._stop_at_next, True)
            try:
                update = await self.wait_async()
            finally:
                await asyncio.to_thread(self._stop_at_next, False)
            yield update

    def _try(self, wait: _Wait) -> bool:
        """Polls once. Returns whether the wait is over."""
        held = self.version
        if wait.version is not None and held is not None and held >= wait.version:
            return True
        try:
            update = self._poll(wait.deadline.left_or_none)
            wait.trouble = ""
        except UnavailableError as error:
            update, wait.trouble = None, f": {error}"
        if update is None or (wait.version is not None and update.version < wait.version):
            return False
        wait.update = update
        return True

    def _stop_at_next(self, stops: bool) -> None:
        """While the iterator waits, limits updates to the next version. Afterwards the user's pin counts again, and a
        staged update stays. Not limited while the loop's body runs, because a user may leave the loop there."""
        self._stops_at_next = stops
        self._update_pin()

    def _update_pin(self) -> None:
        version, back = self._pin
        held = self.version if self._stops_at_next else None
        if held is not None and (version is None or held < version):
            version, back = held + 1, False
        self._core.pin(version, back)

    def pin(self, version: int | None, *, back: bool = False) -> None:
        """Goes no further than this version; None removes the limit. With `back`, the next update brings a target that
        holds a later version back to exactly this one."""
        self._pin = (None if version is None else whole_number("version", version), back)
        self._update_pin()

    def check(self) -> None:
        """Digests the whole target, and raises `CorruptError` if it differs from its version."""
        self._refuse_in_a_fork()
        self._core.check()

    def newest(self) -> int | None:
        """Returns the newest version of the run, also beyond a pinned version; None if there is none."""
        return self._core.newest()

    def close(self) -> None:
        """Releases the lease. The target does not change."""
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
        self._pin = (self.version, False)
