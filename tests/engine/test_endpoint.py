"""The plug-in in the API server: which configurations it refuses, when requests may come, and the version headers."""

import asyncio
import contextlib
import logging
import subprocess
import sys
from types import SimpleNamespace

import fastapi
import pytest
import weightwire as ww
from weightwire import _policy
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

    monkeypatch.setattr(_policy, "MATCH_SECONDS", 0.0)
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

    scope = {"type": "http", "method": "POST", "path": "/v1/completions"}
    asyncio.run(_version_header.VersionHeaders(app)(scope, None, send))
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


def messages_of(monkeypatch, app, **scope):
    """The messages of a response in the order in which a client gets them. `app(client, send)` makes it."""
    monkeypatch.setattr(_version_header, "_keep_first_versions", lambda: None)
    client = Generating([output("a", completion(first="9"))])
    _version_header.note_versions(client)
    sent = []

    async def send(message):
        sent.append(message)

    async def asgi(_scope, _receive, send):
        await app(client, send)

    scope = {"type": "http", "method": "POST", "path": "/v1/responses", **scope}
    asyncio.run(_version_header.VersionHeaders(asgi)(scope, None, send))
    return sent


def start_of(status=200, content_type=b"text/event-stream"):
    return {"type": "http.response.start", "status": status, "headers": [(b"Content-Type", content_type)]}


def part(text, more=True):
    return {"type": "http.response.body", "body": text, "more_body": more}


def test_a_stream_whose_first_events_have_no_token_waits_for_one(monkeypatch):
    """As that of the Responses API, which calls generate after its first events."""

    async def app(client, send):
        await send(start_of())
        await send(part(b"created"))
        async for _ in client.generate():
            await send(part(b"token"))
        await send(part(b"", more=False))

    start, *parts = messages_of(monkeypatch, app)
    assert (b"weightwire-version", b"9") in start["headers"]
    assert [message["body"] for message in parts] == [b"created", b"token", b""]


@pytest.mark.parametrize("scope", [{"method": "GET"}, {"path": "/events"}])
def test_a_stream_that_generates_nothing_is_not_held_back(monkeypatch, scope):
    seen = []

    async def app(client, send):
        await send(start_of())
        await send(part(b"event"))
        seen.append("sent")

    messages = messages_of(monkeypatch, app, **scope)
    assert [message["type"] for message in messages] == ["http.response.start", "http.response.body"]
    assert messages[0]["headers"] == start_of()["headers"]


def test_an_error_names_no_version(monkeypatch):
    async def app(client, send):
        async for _ in client.generate():
            pass
        await send(start_of(500, b"application/json"))
        await send(part(b"{}", more=False))

    start, _ = messages_of(monkeypatch, app)
    assert start["headers"] == [(b"Content-Type", b"application/json")]


# --- routes and warnings ---


def engine_client(rank):
    parallel = SimpleNamespace(_api_process_rank=rank)
    return SimpleNamespace(vllm_config=SimpleNamespace(parallel_config=parallel))


def test_each_unknown_variable_is_warned_of_once_by_the_first_process(monkeypatch, caplog):
    """Also if the misspelled one is the run itself."""
    monkeypatch.delenv("WEIGHTWIRE_RUN", raising=False)
    monkeypatch.setenv("WEIGHTWIRE_RUNS", "run")
    monkeypatch.setenv("WEIGHTWIRE_POL_INTERVAL", "1s")
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    for rank in (0, 1, 2):
        asyncio.run(endpoint_module.Endpoint().init_state(engine_client(rank), None, None))
    warnings = [record.getMessage() for record in caplog.records if "is unknown" in record.getMessage()]
    assert len(warnings) == 2
    assert any("WEIGHTWIRE_POLL_INTERVAL?" in warning for warning in warnings)
    assert any("WEIGHTWIRE_RUN?" in warning for warning in warnings)


def test_routes_answer_before_the_server_follows(monkeypatch):
    monkeypatch.setenv("WEIGHTWIRE_RUN", "run")
    endpoint = endpoint_module.Endpoint()
    answered = asyncio.run(endpoint.answer("/weightwire/status", b""))
    assert (answered.status, answered.body["error"]["code"]) == (503, "unavailable")


def test_routes_are_part_of_the_servers_schema(monkeypatch):
    monkeypatch.setenv("WEIGHTWIRE_RUN", "run")
    app = fastapi.FastAPI()
    endpoint_module.Endpoint().attach_router(app)
    paths = app.openapi()["paths"]
    assert {path: set(methods) for path, methods in paths.items()} == {
        "/weightwire/status": {"get"},
        "/weightwire/pin": {"post"},
        "/weightwire/unpin": {"post"},
    }
    assert "requestBody" in paths["/weightwire/pin"]["post"]


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


# --- metrics ---


def test_metrics_are_those_of_the_table_and_failures_have_a_kind():
    """In a process of its own, because a process can register them only once."""
    script = """
import prometheus_client
from weightwire import UnavailableError, _core
from weightwire.integrations._engine_status import EngineStatus
from weightwire.integrations._metrics import Metrics

status = EngineStatus("run", None, Metrics(), "test")
before = prometheus_client.generate_latest().decode()
assert 'weightwire_update_failures_total{code="corrupt"} 0.0' in before
assert "weightwire_version" not in before  # 0 would be wrong
status.set_held(3, None, None, "ab")
status.add_seen(5)
status.update_lag()
status.updated(3, 0.002)
status.set_error(UnavailableError("x"))
status.set_error(SystemExit(3))
text = prometheus_client.generate_latest().decode()
for line in (
    "weightwire_version 3.0",
    "weightwire_lag_versions 2.0",
    "weightwire_updates_total 1.0",
    'weightwire_update_failures_total{code="unavailable"} 1.0',
    'weightwire_update_failures_total{code="unexpected"} 1.0',
    'weightwire_commit_duration_seconds_bucket{le="0.001"} 0.0',
    'weightwire_commit_duration_seconds_bucket{le="0.002"} 1.0',
    'weightwire_info{package_version="0.1.0",run_id="ab"} 1.0',
):
    assert f"\\n{line}\\n" in text, (line, text)
for row in _core.metrics():
    assert f"# TYPE {row['name']} {row['type']}\\n" in text, row
"""
    subprocess.run([sys.executable, "-c", script.replace('"0.1.0"', f'"{ww.__version__}"')], check=True)
