"""The engine as the API server sees it: questions to all workers of all engine cores, and one commit."""

from __future__ import annotations

import asyncio
from typing import Any

from weightwire.errors import WeightwireError


class UpdateRefused(WeightwireError):
    """The engine cannot do this exactly, and has done nothing."""


class UpdateFailed(WeightwireError):
    """Something went wrong in the engine, which is as it was."""


class WeightsDiffer(WeightwireError):
    """The engine's weights are not what they should be: it must not answer any more."""


class EngineGone(WeightwireError):
    """The engine has ended."""


# So often who waits for an engine looks whether it is still there.
_DEATH_SECONDS = 0.5


class Engine:
    def __init__(self, client: Any) -> None:
        self._client = client
        self._core = client.engine_core
        self._sleeps = bool(client.vllm_config.model_config.enable_sleep_mode)
        self._asked_to_end = False
        shutdown = client.shutdown

        def noting_shutdown(*args: Any, **kwargs: Any) -> Any:
            # vLLM also calls it to clean up after an engine that died.
            self._asked_to_end = self._asked_to_end or not client.errored
            return shutdown(*args, **kwargs)

        client.shutdown = noting_shutdown

    @property
    def is_dead(self) -> bool:
        return bool(self._client.errored)

    @property
    def died_by_itself(self) -> bool:
        return self.is_dead and not self._asked_to_end

    async def is_sleeping(self) -> bool:
        return self._sleeps and any(await self._call("is_sleeping"))

    async def open(self, mirror: str, written: float | None) -> list[dict[str, Any]]:
        """Has the workers learn where things are; one answer for each. `written`: when the mirror last changed; None:
        after the engine was started."""
        answers = await self._ask("open", mirror, written)
        _raise_if_wrong(answers)
        return answers

    async def do(self, task: str, **arguments: Any) -> list[dict[str, Any]]:
        """Has all workers do something that takes long; steps run meanwhile. One answer for each."""
        _raise_if_wrong(await self._ask("begin", task, arguments), may_be_busy=True)
        pause = 0.001
        while True:
            answers = await self._ask("poll")
            if all(answer["state"] != "busy" for answer in answers):
                _raise_if_wrong(answers)
                return answers
            await asyncio.sleep(pause)
            pause = min(2 * pause, 0.1)

    async def commit(self, version: int, digest: str) -> dict[str, Any]:
        """Puts what all workers have prepared in place, between two steps; the mirror holds it. A core that cannot
        stays as it was; after an error, cores may hold different versions."""
        answers = await self._call("weightwire_commit", version, digest)
        _raise_if_wrong(answers)
        slowest: dict[str, Any] = max(answers, key=lambda answer: float(answer["seconds"]))
        return slowest

    async def label(self, version: int) -> None:
        """What is generated from here on is by this version."""
        await self._call("set_weight_version", str(version))

    async def stop(self, why: str) -> None:
        """Ends the engine at once, and with it the server."""
        await self._call("weightwire_stop", why)

    async def _call(self, method: str, *arguments: Any) -> list[Any]:
        """One answer for each core. A core that has died never answers, and nobody says so to who waits."""
        call = asyncio.ensure_future(self._core.call_utility_all_async(method, *arguments))
        while not (await asyncio.wait({call}, timeout=_DEATH_SECONDS))[0]:
            if self.is_dead:
                call.cancel()
                raise EngineGone("the engine has ended")
        answers: list[Any] = call.result()
        return answers

    async def _ask(self, method: str, *arguments: Any) -> list[dict[str, Any]]:
        by_core = await self._call("weightwire_ask_workers", method, list(arguments))
        return [answer for answers in by_core for answer in answers]


def _raise_if_wrong(answers: list[dict[str, Any]], *, may_be_busy: bool = False) -> None:
    """The worst that any of them says."""
    for state, error in (("differs", WeightsDiffer), ("refused", UpdateRefused)):
        for answer in answers:
            if answer["state"] == state:
                raise error(answer["message"])
    for answer in answers:
        if answer["state"] != "ready" and not (may_be_busy and answer["state"] == "busy"):
            raise UpdateFailed(answer["message"])
