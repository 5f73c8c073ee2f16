"""The task in the API server that follows a run: it fetches and stages, has the workers prepare, moves the mirror, and
commits.

In this order, so that whatever fails, nothing wrong is served. What the workers refuse to prepare leaves everything as
it was. Once they have prepared, the mirror moves; once it has, the engine commits. An engine that is behind its mirror,
for whatever reason, is brought there by comparing the two.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from pathlib import Path
from typing import Any

from weightwire.errors import InvalidArgumentError, UnavailableError, WeightwireError
from weightwire.follower import Follower, Update
from weightwire.integrations.vllm.change_file import write_change
from weightwire.integrations.vllm.core import EXIT_STATUS
from weightwire.integrations.vllm.engine import Engine, UpdateRefused, WeightsDiffer
from weightwire.integrations.vllm.metrics import Metrics
from weightwire.integrations.vllm.mirror import MirrorHeld, read_held, reading
from weightwire.integrations.vllm.options import Options

logger = logging.getLogger("vllm.weightwire")

# So long the mirror's readers may keep it from moving before we say so and begin again.
_READERS_SECONDS = 30.0
# Between two tries after trouble.
_TROUBLE_SECONDS = 2.0
# For giving the lease back when the server ends.
_LEAVE_SECONDS = 3.0


class Following:
    """One for each server, in the API process of rank 0."""

    def __init__(self, engine: Engine, options: Options, mirror: Path) -> None:
        self._engine = engine
        self._options = options
        self._mirror = mirror
        # A mirror removes what is not its own when it is opened, and so what a crash has left here.
        self._folder = mirror / ".weightwire" / "engine"
        self._follower: Follower | None = None
        self._held: MirrorHeld | None = None  # by the engine; None: not known, or not the same in all of it
        self._stand_still: tuple[int | None, bool] = (None, False)
        self._asked_to_stand: tuple[int | None, bool] = (None, False)
        self._committed_at = 0.0
        self._checked_at = 0.0
        self._task: asyncio.Task[None] | None = None
        self._metrics = Metrics()
        self.status: dict[str, Any] = {
            "run": options.run,
            "mirror": str(mirror),
            "version": None,
            "digest": None,
            "newest": None,
            "versions_behind": None,
            "seconds_behind": None,
            "last_asked": None,  # whether there is something newer
            "standing_still": None,
            "updates": 0,
            "failed_updates": 0,
            "last_error": None,
            "last_update": None,
            "last_check": None,
        }

    # --- before the server takes requests ---

    async def start(self) -> None:
        """Makes sure that the engine holds what the mirror does, then begins to follow. Raises if it cannot."""
        held = read_held(self._mirror)
        if held is None:  # only a follower can finish what a crash left, or load the first version
            await self._open_follower()
            assert self._follower is not None
            if self._follower.version is None:
                await asyncio.to_thread(self._follower.poll)
            held = read_held(self._mirror)
        if held is None:
            raise UnavailableError(f"the mirror {self._mirror} holds no version yet")
        with reading(self._mirror) if self._follower is None else contextlib.nullcontext():
            await self._match(held)
        self._task = asyncio.create_task(self._run(), name="weightwire")

    async def _match(self, held: MirrorHeld) -> None:
        workers = await self._engine.open(str(self._mirror))
        stale = any(worker["stale"] for worker in workers)
        if stale or any(worker["young"] and worker["by_reload"] for worker in workers):
            logger.info("weightwire: the engine holds something else than the mirror, and is brought there")
            await self._engine.do("prepare_mirror", version=held.version, reload=True)
            await self._engine.commit(held.version)
            workers = await self._engine.do("check", settle=True)
        await self._engine.label(held.version)
        self._set_held(held)
        self._checked_at = time.monotonic()
        for refused in sorted({text for worker in workers for text in worker["refused"]}):
            logger.warning("weightwire: updates that touch it will be refused: %s", refused)
        logger.info(
            "weightwire: follows %s from version %d; %d parameters are written in place, %d loaded anew",
            self._options.run,
            held.version,
            workers[0]["in_place"],
            workers[0]["by_reload"],
        )

    # --- following ---

    def stand_still(self, version: int | None, back: bool) -> None:
        """Goes no further than this version; with `back`, goes back to it. None: as far as there is."""
        self._stand_still = (version, back)
        self.status["standing_still"] = version

    async def _run(self) -> None:
        """Until the server ends, which cancels this."""
        try:
            await self._go_on()
        finally:
            self._give_back()
            if self._engine.is_dead:
                _end()

    async def _go_on(self) -> None:
        while not self._engine.is_dead:
            pause = self._options.poll
            try:
                await self._turn()
                self._note_trouble(None)
            except WeightsDiffer as error:
                self._note_trouble(str(error))
                await self._engine.stop(f"the weights are not what they should be: {error}")
            except WeightwireError as error:
                self._note_trouble(str(error))
                pause = max(pause, _TROUBLE_SECONDS)
            except Exception as error:
                if self._engine.is_dead:
                    return
                logger.exception("weightwire: following failed")
                self._note_trouble(f"{type(error).__name__}: {error}")
                pause = max(pause, _TROUBLE_SECONDS)
            self._note_standing()
            await asyncio.sleep(pause)

    async def _turn(self) -> None:
        """Asks once whether there is something newer, and does what is to be done."""
        if self._follower is None:
            await self._open_follower()
        follower = self._follower
        assert follower is not None
        self._pass_limits(follower)
        asked = time.time()
        update = await asyncio.to_thread(follower.poll)
        self.status["last_asked"] = asked
        if self._held is None or follower.version != self._held.version:
            await self._catch_up()
        elif update is not None and update.seconds is None and self._is_time(follower):
            await self._advance(update)
        if self._options.check_all and self._committed_at > self._checked_at:
            await self._check_if_time()

    def _pass_limits(self, follower: Follower) -> None:
        version, back = self._stand_still
        if self._options.every_version and self._held is not None and not back:
            version = self._held.version + 1 if version is None else min(version, self._held.version + 1)
        if (version, back) != self._asked_to_stand:
            follower.stand_still(version, back=back)
            self._asked_to_stand = (version, back)

    def _is_time(self, follower: Follower) -> bool:
        if time.monotonic() - self._committed_at < self._options.interval:
            return False
        # Who is told to go to a version goes.
        return self._stand_still[0] is not None or follower.stats.versions_behind > self._options.behind

    async def _advance(self, update: Update) -> None:
        """By the change that was staged."""
        start = time.monotonic()
        path = self._folder / "change.safetensors"
        await asyncio.to_thread(self._write, update, path)
        await self._engine.do("prepare_change", path=str(path), version=update.version)
        prepared = time.monotonic()
        await self._move_mirror(update)
        moved = time.monotonic()
        await self._commit(
            {
                "from_version": update.from_version,
                "bytes_fetched": update.bytes_fetched,
                "seconds_preparing": prepared - start,
                "seconds_moving_mirror": moved - prepared,
            }
        )

    async def _catch_up(self) -> None:
        """By comparing everything with the mirror."""
        held = read_held(self._mirror)
        if held is None:
            raise UnavailableError(f"the mirror {self._mirror} is not finished")
        start = time.monotonic()
        await self._engine.do("prepare_mirror", version=held.version, reload=True)
        before = None if self._held is None else self._held.version
        await self._commit({"from_version": before, "seconds_preparing": time.monotonic() - start})

    def _write(self, update: Update, path: Path) -> None:
        changes = update.changes
        if changes is None or update.changes_layout:
            raise UpdateRefused(
                f"version {update.version} has other names, types or shapes; start the server anew from its mirror, "
                "once a follower has brought it there"
            )
        path.parent.mkdir(exist_ok=True)
        write_change(path, changes, update.version)

    async def _move_mirror(self, update: Update) -> None:
        deadline = time.monotonic() + _READERS_SECONDS
        while True:
            try:
                await asyncio.to_thread(update.apply)
                return
            except UnavailableError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.05)

    async def _commit(self, said: dict[str, Any]) -> None:
        held = read_held(self._mirror)
        assert held is not None
        self._held = None  # until it is known
        committed = await self._engine.commit(held.version)
        self._committed_at = time.monotonic()
        self._set_held(held)
        self.status["updates"] += 1
        self._metrics.updated(committed["seconds"])
        self.status["last_update"] = {
            "version": held.version,
            "time": time.time(),
            "elements": committed["elements"],
            **said,
            "seconds_in_loop": committed["seconds"],
            "seconds_writing": committed["seconds_writing"],
        }
        logger.info(
            "weightwire: version %d; %d elements, %.1f ms in the engine's loop",
            held.version,
            committed["elements"],
            1e3 * committed["seconds"],
        )

    async def _check_if_time(self) -> None:
        start = time.monotonic()
        if self._held is None or start - self._checked_at < self._options.check_interval:
            return
        answers = await self._engine.do("check", settle=False)
        self._checked_at = time.monotonic()
        self.status["last_check"] = {
            "version": self._held.version,
            "time": time.time(),
            "elements": sum(answer["elements"] for answer in answers),
            "seconds": self._checked_at - start,
        }

    async def _open_follower(self) -> None:
        self._follower = await asyncio.to_thread(
            Follower, self._options.run, self._mirror, poll_seconds=self._options.poll
        )

    def _give_back(self) -> None:
        """The lease, unless the bucket takes long: then it expires."""
        follower, self._follower = self._follower, None
        if follower is not None:
            thread = threading.Thread(target=follower.close, daemon=True)
            thread.start()
            thread.join(_LEAVE_SECONDS)

    # --- for people ---

    def _set_held(self, held: MirrorHeld) -> None:
        self._held = held
        self.status["version"], self.status["digest"] = held
        self._metrics.holds(held.version)

    def _note_trouble(self, text: str | None) -> None:
        if text is not None:
            self.status["failed_updates"] += 1
            self._metrics.failed()
        if text is not None and text != self.status["last_error"]:
            logger.error("weightwire: %s", text)
        elif text is None and self.status["last_error"] is not None:
            logger.info("weightwire: the trouble is over")
        self.status["last_error"] = text

    def _note_standing(self) -> None:
        if self._follower is not None:
            stats = self._follower.stats
            self.status["newest"] = stats.newest
            self.status["versions_behind"] = stats.versions_behind
            self._metrics.is_behind(stats.versions_behind)
            self.status["seconds_behind"] = stats.seconds_behind


def _end() -> None:
    """Ends this process, since the engine is gone. vLLM does it too, but with the status of success."""
    logging.shutdown()
    os._exit(EXIT_STATUS)


def mirror_of(options: Options, model: str) -> Path:
    if options.mirror is not None:
        return options.mirror
    if not Path(model).is_dir():
        raise InvalidArgumentError(
            f"'{model}' is no directory that can be kept up to date; serve a mirror, or name one by WEIGHTWIRE_MIRROR"
        )
    return Path(model)
