"""What cannot be done exactly is refused, and nothing is touched: experts that are packed, and weights that two modules
share and pack. On a server with two API processes, of which one follows."""

import json
import urllib.error

import pytest
from conftest import PROMPTS, WAIT_SECONDS, TrainedRun, damage, failures_of

EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "decoder_sparse_step": 2,  # the second layer has them
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    run = TrainedRun(tmp_path_factory.mktemp("run"), tied=True, shape=EXPERTS)
    yield run
    run.close()


@pytest.fixture(scope="module")
def server(run, start):
    return start(run.make_mirror(), run.bucket, arguments=["--api-server-count", "2"]).wait_until_up()


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        ("model.layers.1.mlp.experts.", "has not been shown to be exact"),
        ("model.embed_tokens.", "share a weight"),
    ],
)
def test_it_stays_as_it_is(run, server, reference, names, reason):
    answers = reference.answers(run.checkpoint(0), plain=False)
    assert server.answers() == answers
    run.go_back(0)
    version = run.step([name for name in run.state if name.startswith(names)])
    status = server.wait_for(lambda status: reason in (status["last_error"] or ""), "a refusal")
    assert (status["version"], status["newest_version"], status["last_update"]) == (0, version, None)
    assert server.answers() == answers
    metrics = server.metrics
    assert failures_of(server, "unsupported") >= 1
    assert (metrics["weightwire_version"], metrics["weightwire_lag_versions"]) == (0, version)


def test_every_api_process_answers_and_pins(server):
    """A new connection may reach either of the two; pins are those of the process that follows."""
    assert {server.generate(PROMPTS[0], 2)[3] for _ in range(10)} == {"0:0-2"}
    assert {server.post("/weightwire/pin", {})["pinned_version"] for _ in range(20)} == {0}
    assert {server.get("/weightwire/status")["pinned_version"] for _ in range(20)} == {0}
    assert {server.post("/weightwire/unpin", {})["pinned_version"] for _ in range(20)} == {None}
    for _ in range(20):
        with pytest.raises(urllib.error.HTTPError) as refused:
            server.post("/weightwire/pin", {"version": 0, "back": True})
        assert refused.value.code == 400
        error = json.load(refused.value)["error"]
        assert error["code"] == "invalid_argument" and "'back'" in error["message"]


def test_what_touches_nothing_of_it_is_done(run, server, reference):
    run.go_back(0)
    version = run.step(["model.norm.weight", "model.layers.0.self_attn.q_proj.weight"], share=2)
    assert server.wait_for_version(version)["last_update"]["version"] == version
    assert server.answers() == reference.answers(run.checkpoint(version), plain=False)
    assert server.metrics["weightwire_updates_total"] == 1


def test_after_damage_to_its_mirror_nothing_is_answered_any_more(run, server):
    """Also where nobody can compare it with the engine: experts that are packed."""
    server.wait_for(lambda status: (status["last_verify"] or {}).get("version") == run.version, "a comparison")
    (name,) = (name for name in run.state if name.endswith("layers.1.mlp.experts.0.up_proj.weight"))
    damage(run.mirror / "model.safetensors", name)
    run.step(["model.norm.weight"])
    # With several API servers, one of them ends with status 70, and vLLM's first process with its own.
    assert server.process.wait(WAIT_SECONDS) != 0
    assert "the weights are not what they should be: the mirror is damaged" in server.log.read_text()
    with pytest.raises(OSError):
        server.get("/health", raw=True)
