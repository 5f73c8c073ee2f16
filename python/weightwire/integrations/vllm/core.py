"""In the engine's core, whose loop runs steps: a method here runs between two of them."""

from __future__ import annotations

import logging
import os
import time
from typing import Any

logger = logging.getLogger("vllm.weightwire")

# The exit status of a core that may not go on, and of its server.
EXIT_STATUS = 70


def ask_workers(core: Any, method: str, args: list[Any]) -> list[dict[str, Any]]:
    """One answer for each worker."""
    answers: list[dict[str, Any]] = core.model_executor.collective_rpc("weightwire", args=(method, *args))
    return answers


def commit(core: Any, version: int, digest: str) -> dict[str, Any]:
    """All workers write what they have prepared; nothing that was computed with the old weights is used again; what is
    generated from here on is labelled with the version.

    If some have written and others have not, or something does not read back, nothing right can come of the weights any
    more: this process ends, and with it the server.
    """
    start = time.perf_counter()
    if core.vllm_config.model_config.enable_sleep_mode and core.model_executor.is_sleeping:
        return {"state": "failed", "message": "the engine sleeps: its weights are not in memory", "written": False}
    try:
        _forget_what_was_computed(core)
    except Exception as error:  # nothing has been written
        return {"state": "failed", "message": f"the caches could not be reset: {error}", "written": False}
    try:
        answers = ask_workers(core, "commit", [version, digest])
        wrong = [answer for answer in answers if answer["state"] != "ready"]
        if wrong and len(wrong) == len(answers) and not any(answer["written"] for answer in wrong):
            return wrong[0]
        if wrong:
            raise RuntimeError(str(wrong[0]["message"]))
        core.set_weight_version(str(version))
    except BaseException as error:
        stop(core, f"the weights are neither the old version nor version {version}: {error}")
    return {
        "state": "ready",
        "elements": max(answer["elements"] for answer in answers),
        "seconds": time.perf_counter() - start,
        "seconds_writing": max(answer["seconds"] for answer in answers),
    }


def stop(core: Any, why: str) -> None:
    """Ends this process, and so the server: whatever it would answer could be wrong."""
    logger.critical("weightwire: %s. The engine stops; start the server anew.", why)
    logging.shutdown()
    os._exit(EXIT_STATUS)


def _forget_what_was_computed(core: Any) -> None:
    """Requests go on, and compute their cache anew. Before anything is written, for it can fail; no step is run between
    this and the writing."""
    if not core.reset_prefix_cache(reset_running_requests=True, reset_connector=True):
        raise RuntimeError("a connector refused")
    if core.vllm_config.model_config.is_multimodal_model:
        core.reset_encoder_cache()
