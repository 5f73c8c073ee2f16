"""Following: holding an exact copy of a run's weights, and moving to newer versions."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, fields
from types import TracebackType
from typing import Any

from weightwire import _core
from weightwire._arguments import seconds, whole_number
from weightwire._deadline import Deadline
from weightwire._forks import OwnerProcess
from weightwire._target_arrays import target_arrays
from weightwire._update import Update
from weightwire.errors import InvalidArgumentError, UnavailableError, WaitTimeoutError, WeightwireError

_log = logging.getLogger("weightwire")


@dataclass(frozen=True, kw_only=True)
class FollowerStatus:
    """The state of a follower at one moment. `None` means that there is no such value, or that it is not known yet."""

    version: int | None
    """The version that the target holds."""
    step: int | None
    digest: str | None
    """The digest of the weights that the target holds: the same wherever that version is held."""
    newest_version: int | None
    """The newest version that the follower has seen."""
    staged_version: int | None
    """The version that the target holds once the update is applied that `poll` returned."""
    pinned_version: int | None
    lag_versions: int | None
    """How many versions are newer than the one held."""
    lag_seconds: float | None
    """How long the follower has known of a newer version; 0 if it knows of none."""
    has_lease: bool
    waiting_for: str | None
    """What the follower waits for, for people; its wording may change."""
    last_error: str | None
    """Why the last poll failed, or why the target holds no version any longer; otherwise `None`."""
    bytes_received: int
    """Bytes of all answers of the store."""
    versions_applied: int
    anchors_loaded: int


class _Wait:
    """One call of `wait`: the wanted version, the deadline and the result."""

    def __init__(self, version: int | None, timeout: float | None, seen: Update | None = None) -> None:
        self.version = None if version is None else whole_number("version", version)
        self.seen = seen
        """The caller has this update already, and has not applied it."""
        self.update: Update | None = None
        self.error = ""
        self.deadline = Deadline(timeout)

    def pause(self, seconds: float) -> float:
        """How long to wait before the next poll. Raises on timeout."""
        if self.deadline.is_over:
            what = "a newer version" if self.version is None else f"version {self.version}"
            raise WaitTimeoutError(f"{what} did not come within {self.deadline.timeout} seconds{self.error}")
        return self.deadline.left(seconds)

    def result(self) -> Update:
        assert self.update is not None
        return self.update


class Follower:
    """Brings a target to newer versions of a run.

    `target` is a state dict or another mapping of names to arrays in host memory, which are written to in place; or the
    path of a directory, which becomes a mirror: a Hugging Face checkpoint that other programs can load. The target
    changes only by `Update.apply` and `Update.undo`.

    Arrays that hold a version already are recognized by their digest. Otherwise the first update is a full load.

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

    name           what `weightwire followers` shows; by default the host, and the directory of a mirror
    adopt          take over a directory that has files already; its version is found by its digest
    verify         digest everything that a directory holds before following, and arrays before each update. If
                   something else has written to them, the newest version is loaded completely. `apply` always
                   compares the elements that it changes
    lease          keep a lease in the bucket, which protects from gc what this follower needs
    every_version  return each version as an update of its own; only versions that gc has removed are skipped
    include_code   fetch files that can run as code when loaded (.py, pickles); only from a bucket that you trust
    swap           keep complete copies in the directory, and replace its link `current`: readers need no lock
    wait_for_run   if the run does not exist yet, `poll` returns None until it does; otherwise `NotFoundError`
    poll_interval  seconds between two polls of `wait` and `updates`
    threads        how many to decode, digest and hash with; by default one for each core
    max_bytes_per_second  the limit for traffic with the bucket; by default there is none
    """

    def __init__(
        self,
        run: str | os.PathLike[str],
        target: Mapping[str, Any] | str | os.PathLike[str],
        *,
        name: str | None = None,
        adopt: bool = False,
        verify: bool = True,
        lease: bool = True,
        every_version: bool = False,
        include_code: bool = False,
        swap: bool = False,
        wait_for_run: bool = False,
        poll_interval: float = _core.POLL_SECONDS,
        threads: int | None = None,
        max_bytes_per_second: int | None = None,
    ) -> None:
        arrays = isinstance(target, Mapping)
        if not arrays and not isinstance(target, (str, os.PathLike)):
            raise InvalidArgumentError(
                f"cannot follow into a {type(target).__name__}: give a mapping of names to arrays, such as a module's "
                "state_dict(), or the path of a directory"
            )
        for option, is_set in (("adopt", adopt), ("include_code", include_code), ("swap", swap)):
            if arrays and is_set:
                raise InvalidArgumentError(f"{option}=True is for directories, and the target is a mapping of arrays")
        self._run = os.fspath(run)
        self._poll_interval = seconds("poll_interval", poll_interval)
        self._pending: Update | None = None
        self._applied: Update | None = None
        self._fetched = 0  # bytes_fetched of the core when the target got its version
        self._last_error: str | None = None
        self._logged_loss: str | None = None
        self._closed = False
        self._core = _core.Follower(
            self._run,
            target_arrays(target) if isinstance(target, Mapping) else os.fspath(target),
            {
                "name": name or "",
                "adopt": bool(adopt),
                "verify": bool(verify),
                "lease": bool(lease),
                "every_version": bool(every_version),
                "include_code": bool(include_code),
                "swap": bool(swap),
                "wait_for_run": bool(wait_for_run),
                "threads": 0 if threads is None else whole_number("threads", threads, least=1),
                "max_bytes_per_second": 0
                if max_bytes_per_second is None
                else whole_number("max_bytes_per_second", max_bytes_per_second, least=1),
            },
        )
        self._process = OwnerProcess()

    @property
    def run(self) -> str:
        """The run's URL or path, as it was given."""
        return self._run

    @property
    def run_id(self) -> str | None:
        """None until the run exists."""
        return self._core.run_id

    @property
    def status(self) -> FollowerStatus:
        """Never waits, also not for a poll on another thread."""
        values = self._core.status()
        values["last_error"] = self._last_error or values["lost_because"]
        return FollowerStatus(**{field.name: values[field.name] for field in fields(FollowerStatus)})

    @property
    def version(self) -> int | None:
        """The version that the target holds."""
        version: int | None = self._core.status()["version"]
        return version

    def poll(self) -> Update | None:
        """Fetches, verifies and stages what is new, without changing the target. Returns the update to the newest
        version, or None if the target holds it.

        Several versions become one update. An update that was not applied is covered by the next one. With much to
        fetch, an update may lead to an earlier version than the newest; the next one continues from there.
        """
        return self._poll(None)

    def _poll(self, patience: float | None) -> Update | None:
        """`patience`: for how many seconds transient errors are retried."""
        self._refuse_in_a_fork()
        try:
            staged = self._core.poll(patience)
        except WeightwireError as error:
            self._last_error = str(error)
            raise
        self._last_error = None
        self._log_loss()
        if staged is None:
            self._pending = None
            return None
        self._pending = Update(self, staged, self._core.status()["bytes_fetched"] - self._fetched)
        return self._pending

    def _log_loss(self) -> None:
        """Logs once why the target holds no version any longer."""
        lost = self._core.status()["lost_because"]
        if lost is not None and lost != self._logged_loss:
            _log.warning("%s", lost)
        self._logged_loss = lost

    def wait(self, version: int | None = None, timeout: float | None = None) -> Update:
        """Polls until there is an update, by default to any version but the one held, or one that leads to at least
        `version`. Retries while the store cannot be reached. Raises `WaitTimeoutError` after `timeout` seconds.

        If the target holds `version` or a later one already, returns an update that is applied and changes nothing. If
        one update cannot lead as far as `version` (with `every_version`, or with very much to fetch), returns the first
        one on the path: apply it and call `wait` again.
        """
        return self._wait(_Wait(version, timeout))

    def _wait(self, wait: _Wait) -> Update:
        while not self._try(wait):
            time.sleep(wait.pause(self._poll_interval))
        return wait.result()

    def updates(self) -> Iterator[Update]:
        """Yields every update from now on, as `wait` returns them, until the follower is closed.

        Apply an update before asking for the next one. If it is not applied, the next one also includes it.
        """
        update: Update | None = None
        while not self._closed:
            try:
                update = self._wait(_Wait(None, None, _not_applied(update)))
            except InvalidArgumentError:
                if self._closed:
                    return
                raise
            yield update

    def pin(self, version: int | None = None) -> None:
        """Holds exactly this version, by default the one held now: updates lead forward or back to it, then there are
        none until `unpin`. While the run has no such version yet, updates lead up to the newest one before it. Waits
        for a poll on another thread."""
        self._core.pin(None if version is None else whole_number("version", version))

    def unpin(self) -> None:
        """Follows the newest version again. Waits for a poll on another thread."""
        self._core.unpin()

    def verify(self) -> None:
        """Digests everything that the target holds. Raises `CorruptError` if something else has written to it. The
        follower then holds no version, and its next update is a full load."""
        self._refuse_in_a_fork()
        self._core.verify()

    def close(self) -> None:
        """Releases the lease. The target does not change. Waits for a poll on another thread."""
        self._closed = True
        if not self._process.is_a_fork:
            self._core.close()

    # --- for event loops ---

    @classmethod
    async def open_async(
        cls, run: str | os.PathLike[str], target: Mapping[str, Any] | str | os.PathLike[str], **options: Any
    ) -> Follower:
        """`Follower(run, target, ...)`, which reads from the bucket, and may digest the target."""
        return await asyncio.to_thread(functools.partial(cls, run, target, **options))

    async def poll_async(self) -> Update | None:
        return await asyncio.to_thread(self.poll)

    async def wait_async(self, version: int | None = None, timeout: float | None = None) -> Update:
        return await self._wait_async(_Wait(version, timeout))

    async def _wait_async(self, wait: _Wait) -> Update:
        while not await asyncio.to_thread(self._try, wait):
            await asyncio.sleep(wait.pause(self._poll_interval))
        return wait.result()

    async def updates_async(self) -> AsyncIterator[Update]:
        update: Update | None = None
        while not self._closed:
            try:
                update = await self._wait_async(_Wait(None, None, _not_applied(update)))
            except InvalidArgumentError:
                if self._closed:
                    return
                raise
            yield update

    async def pin_async(self, version: int | None = None) -> None:
        await asyncio.to_thread(self.pin, version)

    async def unpin_async(self) -> None:
        await asyncio.to_thread(self.unpin)

    async def verify_async(self) -> None:
        await asyncio.to_thread(self.verify)

    async def close_async(self) -> None:
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

    # --- private ---

    def _try(self, wait: _Wait) -> bool:
        """Polls once. Returns whether the wait is over."""
        held = self.version
        if wait.version is not None and held is not None and held >= wait.version:
            wait.update = Update(self, (held, held, False, False, None), 0, applied=True)
            return True
        try:
            update = self._poll(wait.deadline.left_or_none)
            wait.error = ""
        except UnavailableError as error:
            update, wait.error = None, f": {error}"
        if update is None or (wait.seen is not None and update.version == wait.seen.version):
            return False
        if wait.version is not None and update.version < wait.version:
            newest = self._core.status()["newest_version"]
            if newest is None or newest < wait.version:
                return False
        wait.update = update
        return True

    def _refuse_in_a_fork(self) -> None:
        if self._process.is_a_fork:
            raise InvalidArgumentError("a fork of the follower's process cannot follow: it has none of its threads")

    def _apply(self, update: Update) -> None:
        self._refuse_in_a_fork()
        if update is not self._pending:
            raise InvalidArgumentError(
                f"{update!r} cannot be applied: it was taken back, or a later poll returned another one in its place"
            )
        self._core.apply(update.version)
        self._fetched = self._core.status()["bytes_fetched"]
        self._pending, self._applied = None, update

    def _undo(self, update: Update) -> None:
        self._refuse_in_a_fork()
        if update is not self._applied:
            raise InvalidArgumentError(f"{update!r} cannot be taken back: it is not the last one applied")
        self._core.undo()
        self._pending = self._applied = None


def _not_applied(update: Update | None) -> Update | None:
    return None if update is None or update.applied else update
