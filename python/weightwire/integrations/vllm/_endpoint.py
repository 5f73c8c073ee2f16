"""The plug-in in the API server: its routes, and when the server may start."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from weightwire.errors import InvalidArgumentError, UnavailableError, WeightwireError
from weightwire.integrations.vllm._engine import Engine
from weightwire.integrations.vllm._engine_follower import EngineFollower
from weightwire.integrations.vllm._plugin import Options
from weightwire.integrations.vllm._version_header import VersionHeaders, note_versions

# The label that vLLM starts with.
_NO_LABEL = "default"
# How long the comparison of the engine with its mirror may take. A failure ends the wait earlier.
_MATCH_SECONDS = 3600.0


class Endpoint:
    """An implementation of `vllm.plugins.endpoint_plugins.interface.EndpointPlugin`."""

    name = "weightwire"
    required_tasks = None

    def __init__(self) -> None:
        self._options: Options | None = None
        self._trouble: WeightwireError | None = None
        self._follower: EngineFollower | None = None
        try:
            self._options = Options.from_environment()
        except WeightwireError as error:
            self._trouble = error

    def attach_router(self, app: Any) -> None:
        if self._trouble is not None:
            # Not in the constructor, because vLLM would then start without the plug-in.
            raise self._trouble
        if self._options is None:
            return
        from fastapi import APIRouter, HTTPException
        from pydantic import BaseModel, Field

        class Pin(BaseModel):
            version: int | None = Field(default=None, ge=0)
            back: bool = False

        router = APIRouter(prefix="/weightwire")

        def follower() -> EngineFollower:
            if self._follower is None:
                raise HTTPException(503, "this process does not follow; with several API servers, ask again")
            return self._follower

        async def status() -> dict[str, Any]:
            return follower().status

        async def pin(body: Pin) -> dict[str, Any]:
            follower().pin(body.version, body.back)
            return follower().status

        # FastAPI looks types up by their names in the module, where this class is not.
        pin.__annotations__["body"] = Pin
        router.add_api_route("/status", status, methods=["GET"])
        router.add_api_route("/pin", pin, methods=["POST"])
        app.include_router(router)
        app.add_middleware(VersionHeaders)

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:
        if self._options is None or engine_client is None:
            return
        note_versions(engine_client)
        config = engine_client.vllm_config
        if config.parallel_config._api_process_rank > 0:
            await _wait_for_label(engine_client)
            return
        refuse_unsuited(config)
        mirror = mirror_of(self._options, config.model_config.model)
        follower = EngineFollower(Engine(engine_client), self._options, mirror, served=is_loaded_from(mirror, config))
        await follower.start()
        self._follower = follower


def mirror_of(options: Options, model: str) -> Path:
    if options.mirror is not None:
        return options.mirror
    if not Path(model).is_dir():
        raise InvalidArgumentError(
            f"'{model}' is no directory that can be kept up to date; serve a mirror, or name one by WEIGHTWIRE_MIRROR"
        )
    return Path(model)


def is_loaded_from(mirror: Path, config: Any) -> bool:
    """Whether vLLM was told to load its weights from the mirror."""
    model = Path(config.model_config.model)
    return config.load_config.load_format != "dummy" and model.is_dir() and mirror.is_dir() and mirror.samefile(model)


def refuse_unsuited(config: Any) -> None:
    """Raises if the server is configured in a way that the plug-in cannot support."""
    if not config.model_config.is_moe:
        return
    if config.parallel_config.data_parallel_size > 1:
        raise InvalidArgumentError(
            "weightwire cannot follow with experts and --data-parallel-size above 1: cores that wait for each other in "
            "every step would hold different versions for a moment; start one server for each"
        )
    if config.parallel_config.enable_eplb:
        raise InvalidArgumentError("weightwire cannot follow with --enable-eplb, which moves experts while they serve")


async def _wait_for_label(engine_client: Any) -> None:
    """Waits until the process that follows has verified the engine's weights, because no request may come earlier."""
    deadline = time.monotonic() + _MATCH_SECONDS
    while await engine_client.get_weight_version() == _NO_LABEL:
        if time.monotonic() > deadline:
            raise UnavailableError(
                f"the API server that follows did not find out what the engine holds within {_MATCH_SECONDS:.0f} "
                "seconds; its log says more"
            )
        await asyncio.sleep(0.2)
