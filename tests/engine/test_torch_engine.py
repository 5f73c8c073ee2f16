"""The demo's stand-in for vLLM: the routes, headers and status fields of the plug-in, by the same code."""

import asyncio
import sys

import pytest
import weightwire as ww
from conftest import ROOT, WAIT_SECONDS
from safetensors.torch import load_file

sys.path.insert(0, str(ROOT / "demo"))

from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from weightwire.integrations._engine_status import EngineStatus
from wordle import model, torch_engine


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A model, and its run with version 0."""
    folder = tmp_path_factory.mktemp("torch")
    model.make(folder / "model", 8, 2, 1, steps=2)
    state = {name: weight.bfloat16() for name, weight in load_file(folder / "model/model.safetensors").items()}
    with ww.Publisher(folder / "run") as publisher:

        def publish():
            state["model.norm.weight"] += 0.5
            return publisher.publish(model=state).result(WAIT_SECONDS).version

        publisher.publish(model=state).result(WAIT_SECONDS)
        yield folder, publish


def serve(made, talk):
    """Calls a coroutine with a client of the server, and with a function that publishes."""
    folder, publish = made

    async def run():
        engine = torch_engine.Engine(folder / "model", str(folder / "run"), 1)
        engine.start(asyncio.get_running_loop())
        app = web.Application()
        app.add_routes(torch_engine.routes(engine, "model"))
        async with TestClient(TestServer(app)) as client:
            await talk(client, publish)

    asyncio.run(asyncio.wait_for(run(), WAIT_SECONDS))


async def status_with(client, **fields):
    """Waits until the status has these fields."""
    while True:
        async with client.get("/weightwire/status") as answer:
            status = await answer.json()
        if all(status[name] == value for name, value in fields.items()):
            return status
        await asyncio.sleep(0.02)


async def post(client, path, body):
    async with client.post(path, json=body) as answer:
        return answer.status, answer.headers, await answer.json()


def test_it_follows_is_pinned_and_names_versions_as_the_plug_in_does(made):
    async def talk(client, publish):
        status = await status_with(client, newest_version=0)
        assert list(status) == list(EngineStatus("run", None, None, "weightwire").fields)
        assert (status["version"], status["lag_versions"], status["pinned_version"]) == (0, 0, None)
        assert status["last_verify"]["version"] == 0
        code, headers, _ = await post(client, "/v1/completions", {"prompt": [1, 2], "max_tokens": 3})
        assert (code, headers["weightwire-version"], headers["weightwire-version-spans"]) == (200, "0", "0:0-3")

        newest = publish()
        status = await status_with(client, version=newest)
        assert status["last_update"]["version"] == newest and status["last_update"]["commit_seconds"] > 0
        assert (await post(client, "/weightwire/pin", {"version": 0}))[2]["pinned_version"] == 0
        await status_with(client, version=0, newest_version=newest, lag_versions=newest)
        assert (await post(client, "/weightwire/unpin", {}))[2]["pinned_version"] is None
        await status_with(client, version=newest, lag_versions=0)
        assert (await post(client, "/weightwire/pin", {}))[2]["pinned_version"] == newest

    serve(made, talk)


def test_what_it_refuses_has_the_shape_of_openais_errors(made):
    async def talk(client, publish):
        for path, body in (
            ("/weightwire/pin", {"version": "0"}),
            ("/weightwire/pin", {"version": 0, "back": True}),
            ("/v1/completions", {"prompt": "text"}),
        ):
            code, headers, answer = await post(client, path, body)
            assert code == 400 and "weightwire-version" not in headers
            assert answer["error"]["type"] == "invalid_request_error"
            assert answer["error"]["code"] == "invalid_argument" and answer["error"]["message"]

    serve(made, talk)
