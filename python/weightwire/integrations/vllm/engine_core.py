"""Utilities of vLLM's engine core, whose loop runs steps: each of them runs between two steps. The plug-in adds them to
`EngineCore` under their own names, and engine.py calls them by those."""

from __future__ import annotations

import logging
import os
import time
from typing import Any

from weightwire.integrations.vllm.worker_agent import WorkerAgent, weightwire_agent

logger = logging.getLogger("vllm.weightwire")

EXIT_STATUS = 70
"""The exit status of a core that must not continue, and of its server."""


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
        return {"state": "failed", "message": "the engine sleeps: its weights are not in memory", "written": False}
    try:
        _drop_caches(core)
    except Exception as error:  # nothing has been written
        return {"state": "failed", "message": f"the caches could not be reset: {error}", "written": False}
    try:
        answers = weightwire_ask_workers(core, WorkerAgent.commit.__name__, [version, digest])
        wrong = [answer for answer in answers if answer["state"] != "ready"]
        if wrong and len(wrong) == len(answers) and not any(answer["written"] for answer in wrong):
            return wrong[0]
        if wrong:
            raise RuntimeError(str(wrong[0]["message"]))
        core.set_weight_version(str(version))
    except BaseException as error:
        weightwire_stop(core, f"the weights are neither the old version nor version {version}: {error}")
    return {
        "state": "ready",
        "elements": max(answer["elements"] for answer in answers),
        "seconds": time.perf_counter() - start,
        "seconds_writing": max(answer["seconds"] for answer in answers),
    }


def weightwire_stop(core: Any, why: str) -> None:
    """Ends this process, and the server with it, because any answer could be wrong."""
    logger.critical("weightwire: %s. The engine stops; start the server anew.", why)
    logging.shutdown()
    os._exit(EXIT_STATUS)


UTILITIES = (weightwire_ask_workers, weightwire_commit, weightwire_stop)


def _drop_caches(core: Any) -> None:
    """Running requests continue and compute their cache again. Called before anything is written, because it can fail;
    no step runs between the two."""
    if not core.reset_prefix_cache(reset_running_requests=True, reset_connector=True):
        raise RuntimeError("a connector refused")
    if core.vllm_config.model_config.is_multimodal_model:
        core.reset_encoder_cache()
