"""What the API server gets: routes of ours, and a header that says which versions made a completion."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

from weightwire.errors import UnavailableError, WeightwireError
from weightwire.integrations.vllm.engine import Engine
from weightwire.integrations.vllm.options import Options
from weightwire.integrations.vllm.server import Following, is_loaded_from, mirror_of, refuse_unsuited

HEADER = b"x-weightwire-versions"

RANGE_HEADER = b"x-weightwire-version-range"
# Clients take no more than 8 KB of one header.
_MOST_HEADER_BYTES = 4096
# What vLLM labels weights with before anybody says what they are.
_NO_LABEL = "default"
# So long the engine may take to be compared with its mirror. What fails ends earlier.
_MATCH_SECONDS = 3600.0

# What the completions of a request were made by: (request, index) -> spans of a version, from a token to another.
MadeBy = dict[tuple[str, int], list[tuple[str, int, int]]]
_made_by: contextvars.ContextVar[MadeBy | None] = contextvars.ContextVar("made_by", default=None)

Message = MutableMapping[str, Any]


class Endpoint:
    """As `vllm.plugins.endpoint_plugins.interface.EndpointPlugin` wants it."""

    name = "weightwire"
    required_tasks = None

    def __init__(self) -> None:
        self._options: Options | None = None
        self._trouble: WeightwireError | None = None
        self._following: Following | None = None
        try:
            self._options = Options.from_environment()
        except WeightwireError as error:
            self._trouble = error

    def attach_router(self, app: Any) -> None:
        if self._trouble is not None:
            # Not while it is made: then vLLM would leave the plugin out and start without.
            raise self._trouble
        if self._options is None:
            return
        from fastapi import APIRouter, HTTPException
        from pydantic import BaseModel, Field

        class StandStill(BaseModel):
            version: int | None = Field(default=None, ge=0)
            back: bool = False

        router = APIRouter(prefix="/weightwire")

        def following() -> Following:
            if self._following is None:
                raise HTTPException(503, "this process does not follow; with several API servers, ask again")
            return self._following

        async def status() -> dict[str, Any]:
            return following().status

        async def stand_still(body: StandStill) -> dict[str, Any]:
            following().stand_still(body.version, body.back)
            return following().status

        # The types of the handlers are looked up among the module's names, where these are not.
        stand_still.__annotations__["body"] = StandStill
        router.add_api_route("/status", status, methods=["GET"])
        router.add_api_route("/stand_still", stand_still, methods=["POST"])
        app.include_router(router)
        app.add_middleware(VersionHeader)

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
        following = Following(Engine(engine_client), self._options, mirror, served=is_loaded_from(mirror, config))
        await following.start()
        self._following = following


async def _wait_for_label(engine_client: Any) -> None:
    """Until the process that follows has made sure of what the engine holds: no request may come before."""
    deadline = time.monotonic() + _MATCH_SECONDS
    while await engine_client.get_weight_version() == _NO_LABEL:
        if time.monotonic() > deadline:
            raise UnavailableError(
                f"the API server that follows did not find out what the engine holds within {_MATCH_SECONDS:.0f} "
                "seconds; its log says more"
            )
        await asyncio.sleep(0.2)


def note_versions(engine_client: Any) -> None:
    """Has `generate` note what its completions were made by, for the request at hand."""
    generate = engine_client.generate

    def noting(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        made_by = _made_by.get()
        outputs = generate(*args, **kwargs)
        return outputs if made_by is None else _note(outputs, made_by)

    engine_client.generate = noting


async def _note(outputs: AsyncIterator[Any], made_by: MadeBy) -> AsyncIterator[Any]:
    async for output in outputs:
        for completion in output.outputs:
            if completion.weight_versions:
                made_by[output.request_id, completion.index] = [
                    (span.version, span.start, span.end) for span in completion.weight_versions
                ]
        yield output


def version_header(made_by: MadeBy) -> tuple[bytes, bytes]:
    order = sorted(made_by, key=lambda key: (len(key[0]), key))
    texts = (" ".join(f"{version}:{start}-{end}" for version, start, end in made_by[key]) for key in order)
    value = ", ".join(texts).encode()
    if len(value) <= _MOST_HEADER_BYTES:
        return HEADER, value
    versions = {version for spans in made_by.values() for version, _, _ in spans}
    numbers = sorted(int(version) for version in versions if version.isdigit())
    return RANGE_HEADER, f"{numbers[0]}-{numbers[-1]}".encode() if numbers else b"unknown"


class VersionHeader:
    """ASGI middleware. `3:0-17 4:17-40` says that version 3 made tokens 0 to 16 and version 4 the others; several
    completions are separated by commas. Where there are too many for a header, another says `3-4`: the oldest and the
    newest of them. A stream has sent its headers before that is known, and gets none."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app

    async def __call__(
        self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        made_by: MadeBy = {}

        async def with_header(message: Message) -> None:
            if message["type"] == "http.response.start" and made_by:
                message["headers"] = [*message.get("headers", ()), version_header(made_by)]
            await send(message)

        token = _made_by.set(made_by)
        try:
            await self._app(scope, receive, with_header)
        finally:
            _made_by.reset(token)
