"""What vLLM calls, by the entry points of this package."""

from __future__ import annotations

import os
from typing import Any

RUN = "WEIGHTWIRE_RUN"


def register() -> None:
    """`vllm.general_plugins`: in every process of vLLM, perhaps several times. Gives workers and the engine's core the
    methods that the server asks for; without a run it does nothing."""
    if RUN not in os.environ:
        return
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.worker.worker_base import WorkerBase

    from weightwire.integrations.vllm import core, worker

    WorkerBase.weightwire = worker.weightwire
    EngineCore.weightwire_ask_workers = core.ask_workers
    EngineCore.weightwire_commit = core.commit
    EngineCore.weightwire_stop = core.stop


def endpoint() -> Any:
    """`vllm.endpoint_plugins`: in every API server, if VLLM_PLUGINS names us."""
    from weightwire.integrations.vllm.routes import Endpoint

    return Endpoint()
