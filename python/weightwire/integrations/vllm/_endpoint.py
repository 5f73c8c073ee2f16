"""The plug-in in the API server: its routes, and when the server may start."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from pathlib import Path
from typing import Any

from weightwire import _core, _policy
from weightwire.errors import InvalidArgumentError, UnavailableError, WeightwireError
from weightwire.integrations._control_socket import ControlSocket, forward
from weightwire.integrations._routes import METHODS, PIN, Answer, answer, error_answer
from weightwire.integrations._settings import EngineSettings
from weightwire.integrations.vllm._engine import Engine
from weightwire.integrations.vllm._engine_follower import EngineFollower
from weightwire.integrations.vllm._version_header import VersionHeaders, note_versions

logger = logging.getLogger("vllm.weightwire")

_PIN_BODY = {
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "properties": {"version": {"type": "integer", "minimum": 0}},
                "additionalProperties": False,
            }
        }
    }
}
# The label that vLLM starts with.
_NO_LABEL = "default"


class Endpoint:
    """An implementation of `vllm.plugins.endpoint_plugins.interface.EndpointPlugin`."""

    name = "weightwire"
    required_tasks = None

    def __init__(self) -> None:
        self._settings: EngineSettings | None = None
        self._trouble: WeightwireError | None = None
        self._follower: EngineFollower | None = None
        self._socket: str | None = None
        """Where the process that follows answers, if this one does not follow."""
        try:
            self._settings = EngineSettings.from_environment()
        except WeightwireError as error:
            self._trouble = error

    def attach_router(self, app: Any) -> None:
        if self._trouble is not None:
            # Not in the constructor, because vLLM would then start without the plug-in.
            raise self._trouble
        if self._settings is None:
            return
        from fastapi import Request
        from fastapi.responses import JSONResponse

        async def answer_request(request: Any) -> Any:
            answer = await self.answer(request.url.path, await request.body())
            return JSONResponse(answer.body, answer.status)

        # FastAPI looks types up by their names in the module, where this one is not.
        answer_request.__annotations__["request"] = Request
        answer_request.__annotations__.pop("return")
        for path, method in METHODS.items():
            body = {"requestBody": _PIN_BODY} if path == PIN else None
            app.add_api_route(path, answer_request, methods=[method], tags=["weightwire"], openapi_extra=body)
        app.add_middleware(VersionHeaders)

    async def answer(self, path: str, body: bytes) -> Answer:
        """Answers a request for one of METHODS, in the process that follows or in another one."""
        if self._follower is not None:
            return answer(self._follower, path, body)
        if self._socket is not None:
            return await forward(self._socket, path, body)
        return error_answer(UnavailableError("this server does not follow yet; try again"))

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:
        is_first = engine_client is None or engine_client.vllm_config.parallel_config._api_process_rank <= 0
        if is_first:
            for warning in _core.unknown_environment(os.environ):
                logger.warning("weightwire: %s", warning)
        if self._settings is None or engine_client is None:
            return
        note_versions(engine_client)
        config, engine = engine_client.vllm_config, Engine(engine_client)
        if not is_first:
            await _wait_for_label(engine_client)
            self._socket = await engine.control_socket()
            return
        refuse_unsuited(config)
        mirror = mirror_of(self._settings, config.model_config.model)
        follower = EngineFollower(engine, self._settings, mirror, served=is_loaded_from(mirror, config))
        if config.parallel_config._api_process_count > 1:
            await self._open_control_socket(engine, follower)
        await follower.start()
        self._follower = follower

    async def _open_control_socket(self, engine: Engine, follower: EngineFollower) -> None:
        """Other API processes forward requests to it. Called before they take any."""
        control = ControlSocket(self._answer_others)
        try:
            await engine.announce(await control.open())
        except OSError as error:
            control.close()
            logger.warning("weightwire: only one API process will answer /weightwire/ requests: %s", error)
            return
        follower.at_end = control.close

    def _answer_others(self, path: str, body: bytes) -> Answer:
        if self._follower is None:
            return error_answer(UnavailableError("this server does not follow yet; try again"))
        return answer(self._follower, path, body)


def mirror_of(settings: EngineSettings, model: str) -> Path:
    if settings.mirror is not None:
        return settings.mirror
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
    deadline = time.monotonic() + _policy.MATCH_SECONDS
    while await engine_client.get_weight_version() == _NO_LABEL:
        if time.monotonic() > deadline:
            raise UnavailableError(
                "the API server that follows did not find out what the engine holds within "
                f"{_policy.MATCH_SECONDS:.0f} seconds; its log says more"
            )
        await asyncio.sleep(0.2)
