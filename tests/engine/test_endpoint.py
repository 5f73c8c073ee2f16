"""The plug-in in the API server: which configurations it refuses, when requests may come, and the version header."""

import asyncio
import contextlib
from types import SimpleNamespace

import pytest
import weightwire as ww
from weightwire.integrations.vllm import _endpoint as endpoint_module


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


def test_the_header_of_many_completions_is_a_summary():
    few = {("a", 1): [("4", 0, 9)], ("a", 0): [("3", 0, 17), ("4", 17, 40)]}
    assert endpoint_module.version_header(few) == (b"x-weightwire-versions", b"3:0-17 4:17-40, 4:0-9")
    many = {(f"r-{i}", 0): [(str(98 + i % 5), 0, 16)] for i in range(1000)}
    assert endpoint_module.version_header(many) == (b"x-weightwire-version-range", b"98-102")


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
