"""The plug-in in the API server: which configurations it refuses, when requests may come, and the version headers."""

import asyncio
import contextlib
from types import SimpleNamespace

import pytest
import weightwire as ww
from weightwire.integrations.vllm import _endpoint as endpoint_module
from weightwire.integrations.vllm import _version_header


def test_an_invalid_option_keeps_the_server_from_starting(monkeypatch):
    monkeypatch.setenv("WEIGHTWIRE_RUN", "run")
    monkeypatch.setenv("WEIGHTWIRE_MAX_LAG", "two")
    endpoint = endpoint_module.Endpoint()  # vLLM leaves out a plugin that raises here
    with pytest.raises(ww.InvalidArgumentError, match="WEIGHTWIRE_MAX_LAG is 'two'"):
        endpoint.attach_router(None)


def test_other_api_servers_wait_until_the_engine_is_verified(monkeypatch):
    labels = iter(["default", "default", "7"])

    class Labelled:
        async def get_weight_version(self):
            return next(labels)

    asyncio.run(endpoint_module._wait_for_label(Labelled()))
    assert next(labels, None) is None

    class Never:
        async def get_weight_version(self):
            return "default"

    monkeypatch.setattr(endpoint_module, "_MATCH_SECONDS", 0.0)
    with pytest.raises(ww.UnavailableError, match="did not find out"):
        asyncio.run(endpoint_module._wait_for_label(Never()))


# --- the version headers ---


def completion(index=0, first=None, spans=None):
    """As vLLM's, with what the plug-in adds."""
    spans = spans and [SimpleNamespace(version=version, start=start, end=end) for version, start, end in spans]
    return SimpleNamespace(index=index, weight_versions=spans, weightwire_first_version=first)


class Generating:
    """An engine client whose calls of generate answer with these outputs, one list for each call."""

    def __init__(self, *calls):
        self._calls = iter(calls)

    def generate(self):
        async def outputs():
            for output in next(self._calls):
                yield output

        return outputs()


def output(request, *completions, finished=False):
    return SimpleNamespace(request_id=request, outputs=completions, finished=finished)


def headers_of(monkeypatch, *calls, streams=False):
    """The version headers of a response to a request that calls generate this often."""
    monkeypatch.setattr(_version_header, "_keep_first_versions", lambda: None)
    client = Generating(*calls)
    _version_header.note_versions(client)

    async def app(scope, receive, send):
        generators = [client.generate() for _ in calls]
        start = {"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]}
        if streams:
            await send(start)
        for generator in generators:
            async for _ in generator:
                if streams:
                    await send({"type": "http.response.body", "body": b"part", "more_body": True})
        if not streams:
            await send(start)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    sent = []

    async def send(message):
        sent.append(message)

    asyncio.run(_version_header.VersionHeaders(app)({"type": "http"}, None, send))
    assert [message["type"] for message in sent].count("http.response.start") == 1
    assert sent[0]["headers"][0] == (b"a", b"b")
    return {name.decode(): value.decode() for name, value in sent[0]["headers"][1:]}


def test_headers_name_the_oldest_version_and_all_spans(monkeypatch):
    two = output(
        "a", completion(1, "4", [("4", 0, 9)]), completion(0, "3", [("3", 0, 17), ("4", 17, 40)]), finished=True
    )
    assert headers_of(monkeypatch, [two]) == {
        "weightwire-version": "3",
        "weightwire-version-spans": "3:0-17 4:17-40, 4:0-9",
    }


def test_a_stream_names_the_version_of_its_first_token(monkeypatch):
    parts = [
        output("a", completion(first="9")),
        output("a", completion(first="9", spans=[("9", 0, 1), ("10", 1, 2)]), finished=True),
    ]
    assert headers_of(monkeypatch, parts, streams=True) == {"weightwire-version": "9"}


def test_spans_that_do_not_fit_are_left_out(monkeypatch):
    calls = [[output(f"r-{i}", completion(spans=[(str(98 + i % 5), 0, 16)]), finished=True)] for i in range(1000)]
    assert headers_of(monkeypatch, *calls) == {"weightwire-version": "98"}


def test_what_has_no_version_has_no_header(monkeypatch):
    assert headers_of(monkeypatch) == {}
    assert headers_of(monkeypatch, [output("a", completion(spans=[]), finished=True)]) == {}
    assert headers_of(monkeypatch, [output("a", completion(spans=[("mine", 0, 9)]), finished=True)]) == {}


# --- which configurations are refused ---


@pytest.mark.parametrize(
    ("is_moe", "size", "moves", "refused"),
    [(False, 4, True, False), (True, 1, False, False), (True, 2, False, True), (True, 1, True, True)],
)
def test_experts_on_several_cores_and_experts_that_move_are_refused(is_moe, size, moves, refused):
    config = SimpleNamespace(
        model_config=SimpleNamespace(is_moe=is_moe),
        parallel_config=SimpleNamespace(data_parallel_size=size, enable_eplb=moves),
    )
    with pytest.raises(ww.InvalidArgumentError) if refused else contextlib.nullcontext():
        endpoint_module.refuse_unsuited(config)
