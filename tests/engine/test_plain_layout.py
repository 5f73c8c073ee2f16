"""A server whose parameters are laid out as the checkpoint's tensors, fused ones included: changes are written in
place."""

import pytest
from conftest import PROMPTS, TrainedRun


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    run = TrainedRun(tmp_path_factory.mktemp("run"))
    yield run
    run.close()


@pytest.fixture(scope="module")
def server(run, start):
    return start(run.make_mirror(), run.bucket, plugins=["plain_layout"]).wait_until_up()


def test_it_starts_with_the_version_of_its_mirror(server, run, reference):
    assert server.status["version"] == 0
    assert server.answers() == reference.answers(run.checkpoint(0), plain=True)


def test_it_follows_exactly(server, run, reference):
    version = run.step()
    status = server.wait_for_version(version)
    answers = reference.answers(run.checkpoint(version), plain=True)
    assert server.answers() == answers
    assert answers != reference.answers(run.checkpoint(0), plain=True)
    assert status["last_error"] is None
    assert status["last_update"]["elements"] > 0


def test_a_long_generation_goes_on_with_the_new_version(server, run, reference):
    before = run.version
    server.wait_for_version(before)
    result = server.generate_in_background(PROMPTS[0], 900)
    after = run.step()
    server.wait_for_version(after)
    tokens, logprobs, spans, header = result()
    assert [version for version, _, _ in spans] == [before, after]
    assert header == " ".join(f"{version}:{start}-{end}" for version, start, end in spans)
    (_, start, switch), (_, again, end) = spans
    assert (start, again, end) == (0, switch, 900)
    old = reference.generate(run.checkpoint(before), [(PROMPTS[0], switch)], plain=True)
    assert old == [(tokens[:switch], logprobs[:switch])]
    new = reference.generate(run.checkpoint(after), [(PROMPTS[0] + tokens[:switch], 900 - switch)], plain=True)
    assert new == [(tokens[switch:], logprobs[switch:])]
