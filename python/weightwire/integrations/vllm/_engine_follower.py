"""The task in the API server that follows a run. For each update it fetches and stages the change, has the workers
prepare it, applies it to the mirror, and has the engine commit it.

In this order no failure leads to wrong answers. If the workers refuse to prepare, nothing has changed. If the engine is
behind its mirror, for whatever reason, the workers compare all parameters with the mirror and the engine commits the
differences.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from weightwire import _core, _policy
from weightwire._follower import Follower
from weightwire._update import Update
from weightwire.errors import CorruptError, UnavailableError, WeightwireError
from weightwire.integrations._settings import EngineSettings
from weightwire.integrations.vllm._engine import EXIT_STATUS, Engine, UpdateFailed
from weightwire.integrations.vllm._mirror import (
    HeldVersion,
    check_files,
    map_tensors,
    read_held,
    read_lock,
    write_change,
    written_at,
)
from weightwire.integrations.vllm._parameter_map import UpdateRefused, WeightsDiffer
from weightwire.integrations.vllm._status import FollowStatus

logger = logging.getLogger("vllm.weightwire")

# A change of more than one in this number of elements is not sent to the workers, because comparing all parameters with
# the mirror takes less time.
_COMPARE_ALL_ABOVE = 16
# The pause between two full checks is at least this number of times as long as the last one took.
_VERIFY_PAUSES = 20


class EngineFollower:
    """One for each server, in the API process of rank 0."""

    def __init__(self, engine: Engine, settings: EngineSettings, mirror: Path, *, served: bool) -> None:
        """`served`: whether vLLM was told to load its weights from the mirror."""
        self._engine = engine
        self._settings = settings
        self._mirror = mirror
        self._served = served
        # A mirror deletes foreign files when it is opened, and so the files that a crash left here.
        self._folder = mirror / ".weightwire" / "engine"
        self._follower: Follower | None = None
        self._held: HeldVersion | None = None  # by the engine; None: unknown, or not the same in all of it
        # After updates that failed.
        self._backoff = _core.Backoff(_policy.ENGINE_ERROR_SECONDS, _policy.LONGEST_ENGINE_ERROR_SECONDS)
        self._pinned = settings.pin  # as the user wants it
        self._follower_pin: int | None = None  # the follower's own
        self._elements = 0  # of the checkpoint
        self._committed_at = -math.inf
        self._verified_at = -math.inf
        self._verify_seconds = 0.0
        self._task: asyncio.Task[None] | None = None
        self.at_end: Callable[[], None] = lambda: None
        """Called when the server ends."""
        self._status = FollowStatus(settings.run, mirror)
        self.status["pinned_version"] = self._pinned

    @property
    def status(self) -> dict[str, Any]:
        return self._status.fields

    # --- before the server takes requests ---

    async def start(self) -> None:
        """Verifies the mirror, brings the engine to its version, and starts to follow. Raises if that is impossible."""
        before, written = read_held(self._mirror), written_at(self._mirror)
        intact = await self._mirror_is_intact()
        with contextlib.ExitStack() as locks:
            found = read_held(self._mirror)
            if intact and found is not None and self._pinned in (None, found.version):
                locks.enter_context(read_lock(self._mirror))
            else:  # a follower loads damaged files again, or the first version, or moves to the pinned one
                await self._open_follower(verify=not intact or found is None)
                assert self._follower is not None
                if self._follower.version is None or self._pinned is not None:
                    await self._move_mirror_before_start(self._follower)
            held = read_held(self._mirror)
            if held is None:
                raise UnavailableError(f"the mirror {self._mirror} holds no version yet")
            self._elements = sum(tensor.numel() for tensor in map_tensors(self._mirror).values())
            await self._match(held, written if intact and held == before else None)
        self._task = asyncio.create_task(self._run(), name="weightwire")

    async def _move_mirror_before_start(self, follower: Follower) -> None:
        """Brings the mirror to the pinned version, or without a pin to the newest, before the engine is compared with
        it."""
        self._update_pin(follower)
        update = await asyncio.to_thread(follower.poll)
        if update is not None:
            await self._move_mirror(update)

    async def _mirror_is_intact(self) -> bool:
        try:
            await asyncio.to_thread(check_files, self._mirror, self._settings.threads)
            return True
        except CorruptError as error:
            logger.warning("weightwire: the mirror is damaged, so a follower loads it again: %s", error)
            return False

    async def _match(self, held: HeldVersion, written: float | None) -> None:
        """Brings the engine to the mirror's version. `written`: when the mirror last changed; None: after the engine
        was started."""
        workers = await self._engine.open(self._mirror, written)
        loaded_from_it = self._served and not any(worker["mirror_is_newer"] for worker in workers)
        unproven = sorted({name for worker in workers for name in worker["unproven"]})
        if unproven and not loaded_from_it:
            raise UpdateRefused(
                f"the engine was loaded from something else than what the mirror {self._mirror} holds now, and "
                f"'{unproven[0]}' can neither be compared with it nor loaded again; restart the server, on the mirror"
            )
        stale = any(worker["stale"] for worker in workers)
        if stale or (not loaded_from_it and any(worker["unread"] for worker in workers)):
            logger.info("weightwire: the engine holds something else than the mirror, and is brought there")
            await self._engine.prepare_mirror(held)
            await self._engine.commit(held)
            workers = await self._engine.compare(recheck_stale=True)
        await self._engine.label(held.version)
        self._set_held(held)
        self._verified_at = time.monotonic()
        self._status.set_limits(workers, not_compared=unproven)
        logger.info(
            "weightwire: follows %s from version %d; %d parameters are written in place, %d reloaded",
            self._settings.run,
            held.version,
            workers[0]["in_place"],
            workers[0]["by_reload"],
        )

    # --- following ---

    def pin(self, version: int | None) -> None:
        """Brings the engine to exactly this version, forward or back, and keeps it there. Without a version,
        pins the one that it holds."""
        if version is None:
            if self._held is None:
                raise UnavailableError("the engine is between two versions; try again, or name the version to pin")
            version = self._held.version
        self._set_pin(version)

    def unpin(self) -> None:
        """Follows the newest version again."""
        self._set_pin(None)

    def _set_pin(self, version: int | None) -> None:
        self._pinned = version
        self.status["pinned_version"] = version

    async def _run(self) -> None:
        """Runs until the server ends, which cancels it."""
        try:
            await self._loop()
        finally:
            self.at_end()
            await self._release_lease()
            if self._engine.died_by_itself:
                _end()

    async def _loop(self) -> None:
        while not self._engine.is_dead:
            pause = self._settings.poll_interval
            try:
                await self._step()
                self._backoff.reset()
                self._status.set_error(None)
            except WeightsDiffer as error:
                self._status.set_error(error)
                await self._engine.stop(f"the weights are not what they should be: {error}")
            except WeightwireError as error:
                self._status.set_error(error)
                pause = max(pause, self._pause_after(error))
            except Exception as error:
                if self._engine.is_dead:
                    return
                logger.exception("weightwire: following failed")
                self._status.set_error(error)
                pause = max(pause, _policy.ENGINE_ERROR_SECONDS)
            self._update_lag()
            await asyncio.sleep(pause)

    def _pause_after(self, error: WeightwireError) -> float:
        if isinstance(error, UpdateFailed):
            return self._backoff.next()
        self._backoff.reset()
        return _policy.ENGINE_ERROR_SECONDS

    async def _step(self) -> None:
        """Asks once for a newer version, and does one update or check if it is due."""
        if await self._engine.is_sleeping():
            return
        if self._follower is None:
            await self._open_follower()
        follower = self._follower
        assert follower is not None
        self._update_pin(follower)
        update = await asyncio.to_thread(follower.poll)
        self._status.set_follower(follower.status)
        if self._held is None or follower.version != self._held.version:
            await self._catch_up(follower, update)
        elif update is not None and self._is_due():
            await self._update(update)
        if self._settings.verify == "full" and self._committed_at > self._verified_at:
            await self._verify_if_due()

    def _update_pin(self, follower: Follower) -> None:
        if self._pinned == self._follower_pin:
            return
        if self._pinned is None:
            follower.unpin()
        else:
            follower.pin(self._pinned)
        self._follower_pin = self._pinned

    def _is_due(self) -> bool:
        if time.monotonic() - self._committed_at < self._settings.min_update_interval:
            return False
        # A pinned engine goes to its version at once.
        return self._pinned is not None or self._status.lag_versions > self._settings.max_lag

    def _may_hold(self, version: int) -> bool:
        """Whether the version is on the path to the pinned one. The user may change the pin during an update."""
        return self._pinned is None or version <= self._pinned

    async def _update(self, update: Update) -> None:
        """Updates the mirror and the engine by the staged change."""
        start = time.monotonic()
        in_place = await self._prepare(update)
        prepared = time.monotonic()
        if not self._may_hold(update.version):
            return
        await self._move_mirror(update)
        moved = time.monotonic()
        if not self._may_hold(update.version):
            if not update.is_full_load:  # of that the mirror keeps no old bits; the pin leads it back
                await update.undo_async()
                self._follower_pin = update.from_version  # undo has pinned it
            return
        if not in_place:
            await self._apply_mirror()
            return
        await self._commit(
            from_version=update.from_version,
            bytes_received=update.bytes_fetched,
            prepare_seconds=prepared - start,
            mirror_seconds=moved - prepared,
        )

    async def _prepare(self, update: Update) -> bool:
        """Has the workers prepare the change, and returns True. Or has them check that they would not refuse it, and
        returns False: then they compare all parameters with the mirror, once that has moved."""
        if update.layout_changed:
            raise UpdateRefused(
                f"version {update.version} has other names, types or shapes; restart the server from its mirror, "
                "once a follower has brought it there"
            )
        changes = update.changes
        if changes is None:
            return False
        is_dense = _COMPARE_ALL_ABOVE * sum(change.changed_units for change in changes) > self._elements
        # Parameters that cannot be compared can only be updated by the change.
        can_compare = not self.status["not_compared"]
        if not is_dense or not can_compare:
            try:
                path = self._folder / "change.safetensors"
                await asyncio.to_thread(write_change, path, changes, update.version)
                await self._engine.prepare_change(path, update.version)
                return True
            except UpdateFailed as error:
                if not can_compare:
                    raise
                logger.warning("weightwire: the change to version %d is not used: %s", update.version, error)
        await self._engine.check_can_change([change.name for change in changes])
        return False

    async def _catch_up(self, follower: Follower, update: Update | None) -> None:
        """Brings the engine to a mirror at another version, because an update failed after the mirror moved. First
        applies a staged update to the mirror, so that the engine skips versions that are not wanted."""
        if update is not None and self._may_hold(update.version):
            await self._move_mirror(update)
        if follower.version is None:
            raise UnavailableError(f"the mirror {self._mirror} is damaged, and not loaded again yet")
        if self._held is not None and follower.version == self._held.version:
            return
        # If the mirror passed the pin before it was set, the engine does not follow it.
        if self._held is None or self._may_hold(follower.version):
            await self._apply_mirror()

    async def _apply_mirror(self) -> None:
        """Has the workers compare all parameters with the mirror, and commits the differences."""
        held = read_held(self._mirror)
        if held is None:
            raise UnavailableError(f"the mirror {self._mirror} is not finished")
        start = time.monotonic()
        await self._engine.prepare_mirror(held)
        before = None if self._held is None else self._held.version
        await self._commit(from_version=before, prepare_seconds=time.monotonic() - start)

    async def _move_mirror(self, update: Update) -> None:
        deadline = time.monotonic() + _policy.READERS_SECONDS
        while True:
            try:
                await asyncio.to_thread(update.apply)
                return
            except UnavailableError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.05)

    async def _commit(self, **more: Any) -> None:
        """`more`: further fields of the status's `last_update`."""
        held = read_held(self._mirror)
        assert held is not None
        self._held = None  # until it is known
        committed = await self._engine.commit(held)
        self._committed_at = time.monotonic()
        self._set_held(held)
        self._status.committed(held.version, committed, **more)

    async def _verify_if_due(self) -> None:
        start = time.monotonic()
        # No update happens during a check. Large models are therefore checked less often than the option says, unless
        # it is 0.
        pause = self._settings.verify_interval
        if pause > 0:
            pause = max(pause, _VERIFY_PAUSES * self._verify_seconds)
        if self._held is None or start - self._verified_at < pause:
            return
        answers = await self._engine.compare(recheck_stale=False)
        assert self._follower is not None
        try:
            await asyncio.to_thread(self._follower.verify)
        except CorruptError as error:  # modules that are loaded from it are wrong too
            raise WeightsDiffer(f"the mirror is damaged: {error}") from error
        self._verified_at = time.monotonic()
        self._verify_seconds = self._verified_at - start
        elements = sum(answer["elements"] for answer in answers)
        self._status.verified(self._held.version, elements, self._verify_seconds)

    async def _open_follower(self, *, verify: bool = False) -> None:
        settings = self._settings
        self._follower = await Follower.open_async(
            settings.run,
            self._mirror,
            name=settings.name,
            verify=verify,
            lease=settings.lease,
            every_version=settings.every_version,
            threads=settings.threads,
            max_bytes_per_second=settings.max_bytes_per_second,
        )

    async def _release_lease(self) -> None:
        """Releases the lease. If the bucket takes long, the lease expires instead."""
        follower, self._follower = self._follower, None
        if follower is not None:
            thread = threading.Thread(target=follower.close, daemon=True)
            thread.start()
            await asyncio.to_thread(thread.join, _policy.RELEASE_SECONDS)

    def _set_held(self, held: HeldVersion) -> None:
        self._held = held
        self._status.set_held(held.version, held.step, held.digest, held.run_id)

    def _update_lag(self) -> None:
        if self._follower is not None:
            self._status.set_follower(self._follower.status)  # also versions that could not be fetched
        self._status.update_lag()


def _end() -> None:
    """Ends this process after the engine died. vLLM would end it too, but with the status of success."""
    logging.shutdown()
    os._exit(EXIT_STATUS)
