"""The engine: as the API server calls it, and what it does in its own process.

`Engine` is used in the API server. The functions below it are utilities of vLLM's engine core, whose loop runs steps:
each of them runs between two steps. The plug-in adds them to `EngineCore` under their own names, and `Engine` calls
them by those.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from weightwire import _policy
from weightwire.errors import UnavailableError
from weightwire.integrations.vllm._mirror import HeldVersion
from weightwire.integrations.vllm._parameter_map import UpdateRefused, WeightsDiffer
from weightwire.integrations.vllm._worker_agent import (
    BUSY,
    DIFFERS,
    READY,
    REFUSED,
    Status,
    WorkerAgent,
    failed,
    weightwire_agent,
)

logger = logging.getLogger("vllm.weightwire")

EXIT_STATUS = 70
"""The exit status of a core that must not continue, and of its server."""


class UpdateFailed(UnavailableError):
    """An error in the engine, which is unchanged."""


class EngineGone(UnavailableError):
    """The engine has ended."""


class Engine:
    """Calls methods of engine cores and workers in other processes. A method is passed by reference, and sent by its
    name."""

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

    async def open(self, mirror: Path, written: float | None) -> list[Status]:
        """Has the workers make their parameter maps. Returns one status for each worker. `written`: when the mirror
        last changed; None: after the engine was started."""
        answers = await self._ask(WorkerAgent.open, str(mirror), written)
        _raise_if_wrong(answers)
        return answers

    async def check_can_change(self, tensors: list[str]) -> None:
        """Raises `UpdateRefused` if changes to any of these tensors would be refused."""
        await self._do(WorkerAgent.check_can_change, tensors=tensors)

    async def prepare_change(self, path: Path, version: int) -> None:
        """Has the workers prepare the change in a file."""
        await self._do(WorkerAgent.prepare_change, path=str(path), version=version)

    async def prepare_mirror(self, held: HeldVersion) -> None:
        """Has the workers prepare the version that the mirror holds, by comparing all parameters with it."""
        await self._do(WorkerAgent.prepare_mirror, version=held.version, digest=held.digest)

    async def compare(self, *, recheck_stale: bool) -> list[Status]:
        """Has the workers compare all readable parameters with the mirror. Raises `WeightsDiffer` if one differs."""
        return await self._do(WorkerAgent.compare, recheck_stale=recheck_stale)

    async def commit(self, held: HeldVersion) -> dict[str, Any]:
        """Commits what all workers have prepared, between two steps. REQUIRES: the mirror holds this version. A core
        that cannot commit is unchanged; after an error, cores may hold different versions."""
        answers = await self._call(weightwire_commit, held.version, held.digest)
        _raise_if_wrong(answers)
        slowest: dict[str, Any] = max(answers, key=lambda answer: float(answer["commit_seconds"]))
        return slowest

    async def announce(self, socket: str) -> None:
        """Tells the other API processes where the one that follows answers for them (`_control_socket`)."""
        await self._call(weightwire_socket, socket)

    async def control_socket(self) -> str | None:
        """Returns the path that the process that follows announced; None if it announced none."""
        return next((socket for socket in await self._call(weightwire_socket, None) if socket is not None), None)

    async def label(self, version: int) -> None:
        """Labels all later output with this version."""
        await self._call("set_weight_version", str(version))

    async def stop(self, why: str) -> None:
        """Ends the engine at once, and the server with it."""
        await self._call(weightwire_stop, why)

    async def _do(self, task: Callable[..., Status], **arguments: Any) -> list[Status]:
        """Has all workers do a long task, while steps run. Returns one status for each worker."""
        _raise_if_wrong(await self._ask(WorkerAgent.start_task, task.__name__, arguments), may_be_busy=True)
        pause = 0.001
        while True:
            answers = await self._ask(WorkerAgent.task_status)
            if all(answer["state"] != BUSY for answer in answers):
                _raise_if_wrong(answers)
                return answers
            await asyncio.sleep(pause)
            pause = min(2 * pause, 0.1)

    async def _ask(self, method: Callable[..., Status], *arguments: Any) -> list[Status]:
        """Calls a method of all agents. Returns one status for each worker."""
        by_core = await self._call(weightwire_ask_workers, method.__name__, list(arguments))
        return [answer for answers in by_core for answer in answers]

    async def _call(self, utility: Callable[..., Any] | str, *arguments: Any) -> list[Any]:
        """Calls a utility of all engine cores, ours or one of vLLM's. Returns one answer for each core. Raises if the
        engine ends, because a dead core never answers and vLLM does not report it."""
        name = utility if isinstance(utility, str) else utility.__name__
        call = asyncio.ensure_future(self._core.call_utility_all_async(name, *arguments))
        while not (await asyncio.wait({call}, timeout=_policy.ENGINE_CHECK_SECONDS))[0]:
            if self.is_dead:
                call.cancel()
                raise EngineGone("the engine has ended")
        answers: list[Any] = call.result()
        return answers


def _raise_if_wrong(answers: list[Status], *, may_be_busy: bool = False) -> None:
    """Raises the worst error among the answers."""
    for state, error in ((DIFFERS, WeightsDiffer), (REFUSED, UpdateRefused)):
        for answer in answers:
            if answer["state"] == state:
                raise error(answer["message"])
    for answer in answers:
        if answer["state"] != READY and not (may_be_busy and answer["state"] == BUSY):
            raise UpdateFailed(answer["message"])


# --- in the engine core ---


def weightwire_ask_workers(core: Any, method: str, args: list[Any]) -> list[dict[str, Any]]:
    """Calls a method of every worker's agent. Returns one answer for each worker."""
    answers: list[dict[str, Any]] = core.model_executor.collective_rpc(weightwire_agent.__name__, args=(method, *args))
    return answers


def weightwire_commit(core: Any, version: int, digest: str) -> dict[str, Any]:
    """Has all workers write what they have prepared, drops everything that was computed with the old weights, and
    labels later output with the version.

    If only some workers have written, or one of them reads back something else, the weights are wrong for good. Then
    this process ends, and the server with it.
    """
    start = time.perf_counter()
    if core.vllm_config.model_config.enable_sleep_mode and core.model_executor.is_sleeping:
        return failed("the engine sleeps: its weights are not in memory")
    try:
        _drop_caches(core)
    except Exception as error:  # nothing has been written
        return failed(f"the caches could not be reset: {error}")
    try:
        answers = weightwire_ask_workers(core, WorkerAgent.commit.__name__, [version, digest])
        wrong = [answer for answer in answers if answer["state"] != READY]
        if wrong and len(wrong) == len(answers) and not any(answer["written"] for answer in wrong):
            return wrong[0]
        if wrong:
            raise RuntimeError(str(wrong[0]["message"]))
        core.set_weight_version(str(version))
    except BaseException as error:
        weightwire_stop(core, f"the weights are neither the old version nor version {version}: {error}")
    return {
        "state": READY,
        "elements": max(answer["elements"] for answer in answers),
        "commit_seconds": time.perf_counter() - start,
        "write_seconds": max(answer["seconds"] for answer in answers),
    }


def weightwire_socket(core: Any, socket: str | None) -> str | None:
    """Keeps the path of the control socket for the other API processes, and returns it."""
    if socket is not None:
        core._weightwire_socket = socket
    return getattr(core, "_weightwire_socket", None)


def weightwire_stop(core: Any, why: str) -> None:
    """Ends this process, and the server with it, because any answer could be wrong."""
    logger.critical("weightwire: %s. The engine stops; restart the server.", why)
    logging.shutdown()
    os._exit(EXIT_STATUS)


UTILITIES = (weightwire_ask_workers, weightwire_commit, weightwire_socket, weightwire_stop)


def _drop_caches(core: Any) -> None:
    """Running requests continue and compute their cache again. Called before anything is written, because it can fail;
    no step runs between the two."""
    if not core.reset_prefix_cache(reset_running_requests=True, reset_connector=True):
        raise RuntimeError("a connector refused")
    if core.vllm_config.model_config.is_multimodal_model:
        core.reset_encoder_cache()
