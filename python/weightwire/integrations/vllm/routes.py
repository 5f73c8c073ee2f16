"""What the API server gets: routes of ours, and a header that says which versions made a completion."""

from __future__ import annotations

import contextvars
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

from weightwire.integrations.vllm.engine import Engine
from weightwire.integrations.vllm.options import Options
from weightwire.integrations.vllm.server import Following, mirror_of

HEADER = b"x-weightwire-versions"

# What the completions of the request at hand were made by: (request, index) -> spans.
_made_by: contextvars.ContextVar[dict[tuple[str, int], str] | None] = contextvars.ContextVar("made_by", default=None)

Message = MutableMapping[str, Any]


class Endpoint:
    """As `vllm.plugins.endpoint_plugins.interface.EndpointPlugin` wants it."""

    name = "weightwire"
    required_tasks = None

    def __init__(self) -> None:
        self._options = Options.from_environment()
        self._following: Following | None = None

    def attach_router(self, app: Any) -> None:
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
            return
        following = Following(Engine(engine_client), self._options, mirror_of(self._options, config.model_config.model))
        await following.start()
        self._following = following


def note_versions(engine_client: Any) -> None:
    """Has `generate` note what its completions were made by, for the request at hand."""
    generate = engine_client.generate

    def noting(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        made_by = _made_by.get()
        outputs = generate(*args, **kwargs)
        return outputs if made_by is None else _note(outputs, made_by)

    engine_client.generate = noting


async def _note(outputs: AsyncIterator[Any], made_by: dict[tuple[str, int], str]) -> AsyncIterator[Any]:
    async for output in outputs:
        for completion in output.outputs:
            if completion.weight_versions:
                spans = (f"{span.version}:{span.start}-{span.end}" for span in completion.weight_versions)
                made_by[output.request_id, completion.index] = " ".join(spans)
        yield output


class VersionHeader:
    """ASGI middleware. `3:0-17 4:17-40` says that version 3 made tokens 0 to 16 and version 4 the others; several
    completions are separated by commas. A stream has sent its headers before that is known, and gets none."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app

    async def __call__(
        self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        made_by: dict[tuple[str, int], str] = {}

        async def with_header(message: Message) -> None:
            if message["type"] == "http.response.start" and made_by:
                order = sorted(made_by, key=lambda key: (len(key[0]), key))
                value = ", ".join(made_by[key] for key in order)
                message["headers"] = [*message.get("headers", ()), (HEADER, value.encode())]
            await send(message)

        token = _made_by.set(made_by)
        try:
            await self._app(scope, receive, with_header)
        finally:
            _made_by.reset(token)
