"""A server that packs its linear weights, as vLLM does on CPUs: touched modules are loaded again, in the commit."""

import signal

import pytest
from conftest import ONE_PROCESS, PROMPTS, WAIT_SECONDS, damage


@pytest.fixture(scope="module")
def server(run, start):
    return start(run.make_mirror(), run.bucket, **ONE_PROCESS).wait_until_up()


def test_it_follows_exactly(server, run, reference):
    assert server.answers() == reference.answers(run.checkpoint(0), plain=False)
    version = run.step()
    status = server.wait_for_version(version)
    answers = reference.answers(run.checkpoint(version), plain=False)
    assert server.answers() == answers
    assert answers != reference.answers(run.checkpoint(0), plain=False)
    assert status["last_error"] is None


def test_one_member_of_a_fused_module_brings_the_others_along(server, run, reference):
    version = run.step(["model.layers.0.self_attn.k_proj.weight", "model.layers.1.mlp.up_proj.weight"], share=3)
    server.wait_for_version(version)
    assert server.answers() == reference.answers(run.checkpoint(version), plain=False)


def test_a_long_generation_goes_on_with_the_new_version(server, run, reference):
    server.wait_for_version(run.version)
    after, (tokens, logprobs, spans, _) = server.generate_across_an_update(run, PROMPTS[0], 900)
    before = after - 1
    assert [version for version, _, _ in spans] == [before, after]
    switch = spans[0][2]
    old = reference.generate(run.checkpoint(before), [(PROMPTS[0], switch)], plain=False)
    assert old == [(tokens[:switch], logprobs[:switch])]
    new = reference.generate(run.checkpoint(after), [(PROMPTS[0] + tokens[:switch], 900 - switch)], plain=False)
    assert new == [(tokens[switch:], logprobs[switch:])]


def test_a_killed_server_goes_on_from_its_mirror_and_stops_when_its_weights_are_wrong(
    server, run, start, reference, tmp_path
):
    result = server.generate_in_background(PROMPTS[0], 900)
    server.stop(signal.SIGKILL)
    with pytest.raises(OSError):
        result()
    missed = run.step()
    damage(run.mirror / "model.safetensors", "model.norm.weight")  # a follower loads it again, and the engine moves
    fault = tmp_path / "fault"
    variables = {**ONE_PROCESS, "ENGINE_TESTS_FAULT": str(fault), "WEIGHTWIRE_MIRROR": str(run.mirror)}
    # Loaded from something else, and compiled, before it is brought to what the mirror holds.
    options = {"plugins": ["fault"], "compiled": True, "WEIGHTWIRE_EVERY_VERSION": "1", **variables}
    again = start(run.checkpoint(0), run.bucket, **options).wait_until_up()
    again.wait_for_version(missed)
    assert again.answers() == reference.answers(run.checkpoint(missed), plain=False)
    assert "the mirror is damaged, so a follower loads it again" in again.log.read_text()

    fault.write_text("bits")
    run.step()
    assert again.process.wait(WAIT_SECONDS) == 70
    assert "the weights are not what they should be" in again.log.read_text()
