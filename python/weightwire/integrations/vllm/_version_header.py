"""Headers that name the versions that made a completion.

`weightwire-version: 3` is the oldest version that made a token. `weightwire-version-spans: 3:0-17 4:17-40` says that
version 3 made tokens 0 to 16 and version 4 the others; several completions are separated by commas. The headers of a
stream are sent with its first token: the version is the one that made it, and there are no spans. Errors have no
version.
"""

from __future__ import annotations

import contextvars
import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

from weightwire.integrations._version_headers import VERSION_HEADER, VERSION_SPANS_HEADER, Span, spans_value

logger = logging.getLogger("vllm.weightwire")

_FIRST_VERSION = "weightwire_first_version"

Message = MutableMapping[str, Any]


class MadeBy:
    """The versions that made the completions of one HTTP request."""

    def __init__(self) -> None:
        self.calls = 0
        """Calls of `generate`."""
        self.has_outputs = False
        self._finished_calls = 0
        self._first: dict[tuple[str, int], str] = {}
        """By request and index of a completion."""
        self._spans: dict[tuple[str, int], list[Span]] = {}

    def note(self, output: Any) -> None:
        self.has_outputs = True
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
            value = spans_value(self._spans[key] for key in keys)
            if value is not None:
                headers.append((VERSION_SPANS_HEADER.encode(), value.encode()))
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
    """ASGI middleware that adds the headers. It holds the response to a request that generates back until the first
    output, because before that no version is known."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app

    async def __call__(
        self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        made_by = MadeBy()
        held: list[Message] | None = []  # None once they were sent

        async def with_headers(message: Message) -> None:
            nonlocal held
            if held is None:
                await send(message)
                return
            held.append(message)
            if message["type"] == "http.response.start":
                if message["status"] < 400 and (made_by.calls > 0 or _generates_later(scope, message)):
                    return
            elif message["type"] == "http.response.body":
                if message.get("more_body", False) and not made_by.has_outputs:
                    return
                held[0]["headers"] = [*held[0].get("headers", ()), *made_by.headers()]
            messages, held = held, None
            for message in messages:
                await send(message)

        token = _made_by.set(made_by)
        try:
            await self._app(scope, receive, with_headers)
        finally:
            _made_by.reset(token)


def _generates_later(scope: Message, start: Message) -> bool:
    """Whether it is a stream whose first events come before it generates: those of the Responses API."""
    headers = {name.lower(): value for name, value in start.get("headers", ())}
    is_stream = headers.get(b"content-type", b"").startswith(b"text/event-stream")
    return bool(is_stream and scope.get("method") == "POST" and str(scope.get("path", "")).endswith("/responses"))
