"""How the plug-in is turned on: the entry points that vLLM calls."""

from __future__ import annotations

import logging
import multiprocessing
import os
from typing import Any

from weightwire.integrations._settings import RUN

logger = logging.getLogger("vllm.weightwire")


def register() -> None:
    """`vllm.general_plugins`: called in every process of vLLM, perhaps several times. Adds the methods that `Engine`
    calls to workers and to the engine core; without a run it does nothing."""
    if not os.environ.get(RUN):
        return
    import vllm.envs
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.worker.worker_base import WorkerBase

    from weightwire.integrations.vllm._engine import UTILITIES
    from weightwire.integrations.vllm._worker_agent import weightwire_agent

    # Without VLLM_PLUGINS vLLM calls this, but loads no plugin that has routes.
    if vllm.envs.VLLM_PLUGINS is None and multiprocessing.parent_process() is None:
        logger.warning("weightwire: %s is set, but nothing is followed: set VLLM_PLUGINS=weightwire too", RUN)
    setattr(WorkerBase, weightwire_agent.__name__, weightwire_agent)
    for utility in UTILITIES:
        setattr(EngineCore, utility.__name__, utility)


def endpoint() -> Any:
    """`vllm.endpoint_plugins`: called in every API server, if VLLM_PLUGINS names the plug-in."""
    from weightwire.integrations.vllm._endpoint import Endpoint

    return Endpoint()
