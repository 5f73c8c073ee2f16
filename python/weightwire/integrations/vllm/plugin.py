"""What vLLM calls, by the entry points of this package."""

from __future__ import annotations

import logging
import multiprocessing
import os
from typing import Any

logger = logging.getLogger("vllm.weightwire")

RUN = "WEIGHTWIRE_RUN"


def register() -> None:
    """`vllm.general_plugins`: in every process of vLLM, perhaps several times. Gives workers and the engine's core the
    methods that the server asks for; without a run it does nothing."""
    if RUN not in os.environ:
        return
    import vllm.envs
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.worker.worker_base import WorkerBase

    from weightwire.integrations.vllm import core, worker

    # Then vLLM loads this, but no plugin that has routes. If it names others, it does not load this either.
    if vllm.envs.VLLM_PLUGINS is None and multiprocessing.parent_process() is None:
        logger.warning("weightwire: %s is set, but nothing is followed: set VLLM_PLUGINS=weightwire too", RUN)
    WorkerBase.weightwire = worker.weightwire
    EngineCore.weightwire_ask_workers = core.ask_workers
    EngineCore.weightwire_commit = core.commit
    EngineCore.weightwire_stop = core.stop


def endpoint() -> Any:
    """`vllm.endpoint_plugins`: in every API server, if VLLM_PLUGINS names us."""
    from weightwire.integrations.vllm.routes import Endpoint

    return Endpoint()
