"""What cannot be done exactly is refused, and nothing is touched: experts that are packed, and weights that two modules
share and pack. On a server with two API processes, of which one follows."""

import pytest
from conftest import WAIT_SECONDS, TrainedRun, damage

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
    assert (status["version"], status["newest"], status["updates"]) == (0, version, 0)
    assert server.answers() == answers
    metrics = server.metrics
    assert metrics["weightwire_update_failures_total"] >= 1
    assert (metrics["weightwire_version"], metrics["weightwire_lag_versions"]) == (0, version)


def test_what_touches_nothing_of_it_is_done(run, server, reference):
    run.go_back(0)
    version = run.step(["model.norm.weight", "model.layers.0.self_attn.q_proj.weight"], share=2)
    assert server.wait_for_version(version)["updates"] == 1
    assert server.answers() == reference.answers(run.checkpoint(version), plain=False)
    assert server.metrics["weightwire_updates_total"] == 1


def test_after_damage_to_its_mirror_nothing_is_answered_any_more(run, server):
    """Also where nobody can compare it with the engine: experts that are packed."""
    server.wait_for(lambda status: (status["last_check"] or {}).get("version") == run.version, "a comparison")
    (name,) = (name for name in run.state if name.endswith("layers.1.mlp.experts.0.up_proj.weight"))
    damage(run.mirror / "model.safetensors", name)
    run.step(["model.norm.weight"])
    # With several API servers, one of them ends with status 70, and vLLM's first process with its own.
    assert server.process.wait(WAIT_SECONDS) != 0
    assert "the weights are not what they should be: the mirror is damaged" in server.log.read_text()
    with pytest.raises(OSError):
        server.get("/health", raw=True)
