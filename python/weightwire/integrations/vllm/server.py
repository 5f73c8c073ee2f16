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
import math
import os
import threading
import time
from pathlib import Path
from typing import Any

from weightwire._update import TensorChange, Update
from weightwire.errors import CorruptError, InvalidArgumentError, UnavailableError, WeightwireError
from weightwire.follower import Follower
from weightwire.integrations.vllm.change_file import write_change
from weightwire.integrations.vllm.core import EXIT_STATUS
from weightwire.integrations.vllm.engine import Engine, UpdateFailed, UpdateRefused, WeightsDiffer
from weightwire.integrations.vllm.lag import Lag
from weightwire.integrations.vllm.metrics import Metrics
from weightwire.integrations.vllm.mirror import MirrorHeld, check_files, map_tensors, read_held, reading, written_at
from weightwire.integrations.vllm.options import Options

logger = logging.getLogger("vllm.weightwire")

# So long the mirror's readers may keep it from moving before we say so and begin again.
_READERS_SECONDS = 30.0
# Between two tries after trouble.
_TROUBLE_SECONDS = 2.0
# An update that failed may have held up every request before it did: it is not tried again and again.
_LONGEST_TROUBLE_SECONDS = 120.0
# A change of more than one in so many elements is not sent to the workers: comparing all with the mirror takes less.
_COMPARE_ALL_ABOVE = 16
# For giving the lease back when the server ends.
_LEAVE_SECONDS = 3.0
# Between two checks of everything there are so many times as long as the last one took.
_CHECK_PAUSES = 20


class Following:
    """One for each server, in the API process of rank 0."""

    def __init__(self, engine: Engine, options: Options, mirror: Path, *, served: bool) -> None:
        """`served`: whether vLLM was to load its weights from the mirror."""
        self._engine = engine
        self._options = options
        self._mirror = mirror
        self._served = served
        # A mirror removes what is not its own when it is opened, and so what a crash has left here.
        self._folder = mirror / ".weightwire" / "engine"
        self._follower: Follower | None = None
        self._held: MirrorHeld | None = None  # by the engine; None: not known, or not the same in all of it
        self._failures = 0  # of updates, since the last turn without
        self._stand_still: tuple[int | None, bool] = (None, False)
        self._asked_to_stand: tuple[int | None, bool] | None = (None, False)  # the follower; None: something else
        self._lag = Lag()
        self._elements = 0  # of the checkpoint
        self._committed_at = -math.inf
        self._checked_at = -math.inf
        self._check_seconds = 0.0
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
            "can_update": True,
            "refused": [],
            "not_compared": [],
        }

    # --- before the server takes requests ---

    async def start(self) -> None:
        """Makes sure that the engine holds what the mirror does, and the mirror what it says, then begins to follow.
        Raises if it cannot."""
        before, written = read_held(self._mirror), written_at(self._mirror)
        sound = await self._mirror_is_sound()
        with contextlib.ExitStack() as locks:
            if sound and read_held(self._mirror) is not None:
                locks.enter_context(reading(self._mirror))
            else:  # only a follower can load what is damaged, or the first version
                await self._open_follower(check=True)
                assert self._follower is not None
                if self._follower.version is None:
                    update = await asyncio.to_thread(self._follower.poll)
                    if update is not None and update.seconds is None:  # from an anchor on
                        await self._move_mirror(update)
            held = read_held(self._mirror)
            if held is None:
                raise UnavailableError(f"the mirror {self._mirror} holds no version yet")
            self._elements = sum(tensor.numel() for tensor in map_tensors(self._mirror).values())
            await self._match(held, written if sound and held == before else None)
        self._task = asyncio.create_task(self._run(), name="weightwire")

    async def _mirror_is_sound(self) -> bool:
        try:
            await asyncio.to_thread(check_files, self._mirror)
            return True
        except CorruptError as error:
            logger.warning("weightwire: the mirror is damaged, and loaded anew: %s", error)
            return False

    async def _match(self, held: MirrorHeld, written: float | None) -> None:
        """Brings the engine to what the mirror holds. `written`: when it last changed; None: after the engine was
        started."""
        workers = await self._engine.open(str(self._mirror), written)
        loaded_from_it = self._served and not any(worker["young"] for worker in workers)
        unproven = sorted({name for worker in workers for name in worker["unproven"]})
        if unproven and not loaded_from_it:
            raise UpdateRefused(
                f"the engine was loaded from something else than what the mirror {self._mirror} holds now, and "
                f"'{unproven[0]}' can neither be compared with it nor loaded anew; start the server anew, on the mirror"
            )
        stale = any(worker["stale"] for worker in workers)
        if stale or (not loaded_from_it and any(worker["unread"] for worker in workers)):
            logger.info("weightwire: the engine holds something else than the mirror, and is brought there")
            await self._engine.do("prepare_mirror", version=held.version, digest=held.digest)
            await self._engine.commit(held.version, held.digest)
            workers = await self._engine.do("check", settle=True)
        await self._engine.label(held.version)
        self._set_held(held)
        self._checked_at = time.monotonic()
        self._note_what_is_refused(workers, unproven)
        logger.info(
            "weightwire: follows %s from version %d; %d parameters are written in place, %d loaded anew",
            self._options.run,
            held.version,
            workers[0]["in_place"],
            workers[0]["by_reload"],
        )

    def _note_what_is_refused(self, workers: list[dict[str, Any]], unproven: list[str]) -> None:
        refused = sorted({text for worker in workers for text in worker["refused"]})
        self.status["refused"], self.status["not_compared"] = refused, unproven
        if not any(worker["in_place"] or worker["by_reload"] for worker in workers):
            self.status["can_update"] = False
            logger.error(
                "weightwire: every update will be refused, so the server stays as it is: %s", "; ".join(refused)
            )
        else:
            for text in refused:
                logger.warning("weightwire: updates that touch it will be refused: %s", text)
        if unproven:
            logger.warning(
                "weightwire: %d parameters, '%s' among them, are not compared with the mirror, but believed to be as "
                "vLLM loaded them from it",
                len(unproven),
                unproven[0],
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
            await self._give_back()
            if self._engine.died_by_itself:
                _end()

    async def _go_on(self) -> None:
        while not self._engine.is_dead:
            pause = self._options.poll
            try:
                await self._turn()
                self._failures = 0
                self._note_trouble(None)
            except WeightsDiffer as error:
                self._note_trouble(str(error))
                await self._engine.stop(f"the weights are not what they should be: {error}")
            except WeightwireError as error:
                self._note_trouble(str(error))
                pause = max(pause, self._pause_after(error))
            except Exception as error:
                if self._engine.is_dead:
                    return
                logger.exception("weightwire: following failed")
                self._note_trouble(f"{type(error).__name__}: {error}")
                pause = max(pause, _TROUBLE_SECONDS)
            self._note_standing()
            await asyncio.sleep(pause)

    def _pause_after(self, error: WeightwireError) -> float:
        self._failures = self._failures + 1 if isinstance(error, UpdateFailed) else 0
        return min(_LONGEST_TROUBLE_SECONDS, _TROUBLE_SECONDS * float(2 ** max(0, self._failures - 1)))

    async def _turn(self) -> None:
        """Asks once whether there is something newer, and does what is to be done."""
        if await self._engine.is_sleeping():
            return
        if self._follower is None:
            await self._open_follower()
        follower = self._follower
        assert follower is not None
        self._pass_limits(follower)
        asked = time.time()
        update = await asyncio.to_thread(follower.poll)
        # A follower does not look beyond where it was told to stop.
        limited = self._asked_to_stand is not None and self._asked_to_stand[0] is not None
        self._lag.saw(await asyncio.to_thread(follower.newest) if limited else follower.stats.newest)
        self.status["last_asked"] = asked
        if self._held is None or follower.version != self._held.version:
            await self._follow_mirror(follower, update)
        elif update is not None and update.seconds is None and self._is_time():
            await self._advance(update)
        if self._options.check_all and self._committed_at > self._checked_at:
            await self._check_if_time()

    def _pass_limits(self, follower: Follower) -> None:
        version, back = self._stand_still
        if self._options.every_version and self._held is not None and not back:
            version = self._held.version + 1 if version is None else min(version, self._held.version + 1)
        if (version, back) != self._asked_to_stand:
            follower.pin(version, back=back)
            self._asked_to_stand = (version, back)

    def _is_time(self) -> bool:
        if time.monotonic() - self._committed_at < self._options.interval:
            return False
        # Who is told to go to a version goes.
        return self._stand_still[0] is not None or self._lag.versions > self._options.behind

    def _may_hold(self, version: int) -> bool:
        """By what was said last, which may be while an update is under way."""
        return self._stand_still[0] is None or version <= self._stand_still[0]

    async def _advance(self, update: Update) -> None:
        """By the change that was staged."""
        start = time.monotonic()
        in_place = await self._prepare(update)
        prepared = time.monotonic()
        if not self._may_hold(update.version):
            return
        await self._move_mirror(update)
        moved = time.monotonic()
        if not self._may_hold(update.version):
            await asyncio.to_thread(update.undo)
            self._asked_to_stand = None  # taking it back was told to the follower in another way
            return
        if not in_place:
            await self._catch_up()
            return
        await self._commit(
            {
                "from_version": update.from_version,
                "bytes_fetched": update.bytes_fetched,
                "seconds_preparing": prepared - start,
                "seconds_moving_mirror": moved - prepared,
            }
        )

    async def _prepare(self, update: Update) -> bool:
        """Has the workers prepare the change, or only say that they would not refuse it, which is the other way: to
        compare everything with the mirror, once that has moved."""
        changes = update.changes
        if changes is None or update.changes_layout:
            raise UpdateRefused(
                f"version {update.version} has other names, types or shapes; start the server anew from its mirror, "
                "once a follower has brought it there"
            )
        is_dense = _COMPARE_ALL_ABOVE * sum(change.changed for change in changes) > self._elements
        # There is no other way where something can be neither compared nor loaded anew.
        can_compare = not self.status["not_compared"]
        if not is_dense or not can_compare:
            try:
                path = self._folder / "change.safetensors"
                await asyncio.to_thread(_write, path, changes, update.version)
                await self._engine.do("prepare_change", path=str(path), version=update.version)
                return True
            except UpdateFailed as error:
                if not can_compare:
                    raise
                logger.warning("weightwire: the change to version %d is not used: %s", update.version, error)
        await self._engine.do("may_change", tensors=[change.name for change in changes])
        return False

    async def _follow_mirror(self, follower: Follower, update: Update | None) -> None:
        """When it is somewhere else than the engine: it loaded an anchor, or something failed in between. The rest of
        the way comes first, so that no version is served that nobody asked for."""
        if update is not None and update.seconds is None and self._may_hold(update.version):
            await self._move_mirror(update)
        if follower.version is None:
            raise UnavailableError(f"the mirror {self._mirror} is damaged, and not loaded anew yet")
        if self._held is not None and follower.version == self._held.version:
            return
        # A mirror that went too far before it was told to stop leaves the engine where it is.
        if self._held is None or self._may_hold(follower.version):
            await self._catch_up()

    async def _catch_up(self) -> None:
        """By comparing everything with the mirror."""
        held = read_held(self._mirror)
        if held is None:
            raise UnavailableError(f"the mirror {self._mirror} is not finished")
        start = time.monotonic()
        await self._engine.do("prepare_mirror", version=held.version, digest=held.digest)
        before = None if self._held is None else self._held.version
        await self._commit({"from_version": before, "seconds_preparing": time.monotonic() - start})

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
        committed = await self._engine.commit(held.version, held.digest)
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
        # No version is taken meanwhile, so of a large model it is done less often than it was asked for; unless that
        # was always.
        pause = self._options.check_interval
        if pause > 0:
            pause = max(pause, _CHECK_PAUSES * self._check_seconds)
        if self._held is None or start - self._checked_at < pause:
            return
        answers = await self._engine.do("check", settle=False)
        assert self._follower is not None
        try:
            await asyncio.to_thread(self._follower.check)
        except CorruptError as error:  # what was loaded from it, or will be, is wrong too
            raise WeightsDiffer(f"the mirror is damaged: {error}") from error
        self._checked_at = time.monotonic()
        self._check_seconds = self._checked_at - start
        self.status["last_check"] = {
            "version": self._held.version,
            "time": time.time(),
            "elements": sum(answer["elements"] for answer in answers),
            "seconds": self._check_seconds,
        }

    async def _open_follower(self, *, check: bool = False) -> None:
        self._follower = await Follower.open_async(self._options.run, self._mirror, check=check)

    async def _give_back(self) -> None:
        """The lease, unless the bucket takes long: then it expires."""
        follower, self._follower = self._follower, None
        if follower is not None:
            thread = threading.Thread(target=follower.close, daemon=True)
            thread.start()
            await asyncio.to_thread(thread.join, _LEAVE_SECONDS)

    # --- for people ---

    def _set_held(self, held: MirrorHeld) -> None:
        self._held = held
        self._lag.holds(held.version)
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
            self._lag.saw(self._follower.stats.newest)  # also what it could not fetch
        self.status["newest"] = self._lag.newest
        self.status["versions_behind"] = self._lag.versions
        self.status["seconds_behind"] = self._lag.seconds
        self._metrics.is_behind(self._lag.versions)


def _write(path: Path, changes: list[TensorChange], version: int) -> None:
    path.parent.mkdir(exist_ok=True)
    write_change(path, changes, version)


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


def is_loaded_from(mirror: Path, config: Any) -> bool:
    """Whether vLLM was told to load its weights from there."""
    model = Path(config.model_config.model)
    return config.load_config.load_format != "dummy" and model.is_dir() and mirror.is_dir() and mirror.samefile(model)


def refuse_unsuited(config: Any) -> None:
    """Raises if a server is set up in a way that cannot be followed with."""
    if not config.model_config.is_moe:
        return
    if config.parallel_config.data_parallel_size > 1:
        raise InvalidArgumentError(
            "weightwire cannot follow with experts and --data-parallel-size above 1: cores that wait for each other in "
            "every step would hold different versions for a moment; start one server for each"
        )
    if config.parallel_config.enable_eplb:
        raise InvalidArgumentError("weightwire cannot follow with --enable-eplb, which moves experts while they serve")
