"""Headers that name the versions that made a completion.

`weightwire-version: 3` is the oldest version that made a token. `weightwire-version-spans: 3:0-17 4:17-40` says that
version 3 made tokens 0 to 16 and version 4 the others; several completions are separated by commas. Of a stream, whose
headers are sent with its first token, the version is the one that made the first token, and there are no spans.
"""

from __future__ import annotations

import contextvars
import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

from weightwire.integrations._version_headers import VERSION_HEADER, VERSION_SPANS_HEADER

logger = logging.getLogger("vllm.weightwire")

# Clients take no more than 8 KB of one header.
_MAX_HEADER_BYTES = 4096
_FIRST_VERSION = "weightwire_first_version"

Message = MutableMapping[str, Any]


class MadeBy:
    """The versions that made the completions of one HTTP request."""

    def __init__(self) -> None:
        self.calls = 0
        """Calls of `generate`."""
        self._finished_calls = 0
        self._first: dict[tuple[str, int], str] = {}
        """By request and index of a completion."""
        self._spans: dict[tuple[str, int], list[tuple[str, int, int]]] = {}

    def note(self, output: Any) -> None:
        for completion in output.outputs:
            key = (output.request_id, completion.index)
            first = getattr(completion, _FIRST_VERSION, None)
            if first is not None:
                self._first.setdefault(key, first)
            if completion.weight_versions:
                self._spans[key] = [(span.version, span.start, span.end) for span in completion.weight_versions]
        self._finished_calls += bool(output.finished)

    def headers(self) -> list[tuple[bytes, bytes]]:
        labels = {label for spans in self._spans.values() for label, _, _ in spans} | set(self._first.values())
        if not labels or not all(label.isdecimal() for label in labels):  # other code has set a label
            return []
        headers = [(VERSION_HEADER.encode(), str(min(map(int, labels))).encode())]
        if self._finished_calls == self.calls:
            keys = sorted(self._spans, key=lambda key: (len(key[0]), key))
            texts = (" ".join(f"{label}:{start}-{end}" for label, start, end in self._spans[key]) for key in keys)
            value = ", ".join(texts).encode()
            if value and len(value) <= _MAX_HEADER_BYTES:
                headers.append((VERSION_SPANS_HEADER.encode(), value))
        return headers


_made_by: contextvars.ContextVar[MadeBy | None] = contextvars.ContextVar("made_by", default=None)


def note_versions(engine_client: Any) -> None:
    """Makes `generate` note the versions that made the completions of the current request."""
    _keep_first_versions()
    generate = engine_client.generate

    def noting(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        made_by = _made_by.get()
        outputs: AsyncIterator[Any] = generate(*args, **kwargs)
        if made_by is None:
            return outputs
        made_by.calls += 1
        return _note(outputs, made_by)

    engine_client.generate = noting


async def _note(outputs: AsyncIterator[Any], made_by: MadeBy) -> AsyncIterator[Any]:
    async for output in outputs:
        made_by.note(output)
        yield output


def _keep_first_versions() -> None:
    """Adds the version of the first token to each output, because vLLM tells the versions only at the end."""
    from vllm.v1.engine.output_processor import RequestState

    make_output = getattr(RequestState, "_new_completion_output", None)
    if make_output is None:
        logger.warning("weightwire: this vLLM does not tell which version begins a stream, so streams get no header")
        return
    if hasattr(make_output, "__wrapped__"):  # a second engine in this process
        return

    @functools.wraps(make_output)
    def with_first_version(self: Any, *args: Any, **kwargs: Any) -> Any:
        completion = make_output(self, *args, **kwargs)
        if self.weight_version_starts:
            setattr(completion, _FIRST_VERSION, self.weight_version_starts[0][0])
        return completion

    RequestState._new_completion_output = with_first_version


class VersionHeaders:
    """ASGI middleware that adds the headers. It holds the start of a response back until the first part of the body,
    because a stream has no token before that."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app

    async def __call__(
        self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        made_by = MadeBy()
        start: Message | None = None

        async def with_headers(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start" and made_by.calls > 0:
                start = message
                return
            if start is not None:
                start["headers"] = [*start.get("headers", ()), *made_by.headers()]
                held_back, start = start, None
                await send(held_back)
            await send(message)

        token = _made_by.set(made_by)
        try:
            await self._app(scope, receive, with_headers)
        finally:
            _made_by.reset(token)
