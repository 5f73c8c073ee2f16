"""A server whose parameters are laid out as the checkpoint's tensors, fused ones included: changes are written in
place."""

import os
import subprocess

import pytest
import weightwire as ww
from conftest import PROMPTS, WAIT_SECONDS, failures_of


@pytest.fixture(scope="module")
def fault(tmp_path_factory):
    return tmp_path_factory.mktemp("fault") / "fault"


@pytest.fixture(scope="module")
def server(run, start, fault):
    plugins = ["plain_layout", "fault"]
    variables = {"ENGINE_TESTS_FAULT": str(fault)}
    return start(run.make_mirror(), run.bucket, plugins=plugins, compiled=True, **variables).wait_until_up()


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
    server.wait_for_version(run.version)
    after, (tokens, logprobs, spans, header) = server.generate_across_an_update(run, PROMPTS[0], 900)
    before = after - 1
    assert [version for version, _, _ in spans] == [before, after]
    assert header == " ".join(f"{version}:{start}-{end}" for version, start, end in spans)
    (_, start, switch), (_, again, end) = spans
    assert (start, again, end) == (0, switch, 900)
    old = reference.generate(run.checkpoint(before), [(PROMPTS[0], switch)], plain=True)
    assert old == [(tokens[:switch], logprobs[:switch])]
    new = reference.generate(run.checkpoint(after), [(PROMPTS[0] + tokens[:switch], 900 - switch)], plain=True)
    assert new == [(tokens[switch:], logprobs[switch:])]


def test_fifty_versions_in_a_row_under_load(server, run, reference):
    first = run.version
    waiting, results = [], []
    for count in range(50):
        while len(waiting) < 3:
            waiting.append(server.generate_in_background(PROMPTS[count % len(PROMPTS)], 40 + count))
        run.step(share=500)
        results.append((PROMPTS[count % len(PROMPTS)], waiting.pop(0)()))
    results += [(None, wait()) for wait in waiting]
    status = server.wait_for_version(run.version)
    assert status["last_error"] is None
    assert server.metrics["weightwire_updates_total"] > 10
    assert server.answers() == reference.answers(run.checkpoint(run.version), plain=True)
    for _, (tokens, _, spans, _) in results:
        assert [start for _, start, _ in spans] == [0, *(end for _, _, end in spans[:-1])]
        assert spans[-1][2] == len(tokens)
        versions = [version for version, _, _ in spans]
        assert versions == sorted(versions)
        assert first <= versions[0] and versions[-1] <= run.version


def test_it_is_pinned_goes_back_and_continues(server, run, reference):
    before = run.version
    server.wait_for_version(before)
    server.post("/weightwire/pin", {"version": before})
    after = run.step()
    status = server.wait_for(lambda status: status["newest_version"] == after, "the newest version")
    assert (status["version"], status["pinned_version"]) == (before, before)
    server.post("/weightwire/pin", {"version": before - 3})
    server.wait_for_version(before - 3)
    assert server.answers() == reference.answers(run.checkpoint(before - 3), plain=True)
    assert server.post("/weightwire/pin", {})["pinned_version"] == before - 3
    assert server.post("/weightwire/unpin", {})["pinned_version"] is None
    server.wait_for_version(after)
    assert server.answers() == reference.answers(run.checkpoint(after), plain=True)


def test_a_damaged_object_is_not_applied_and_an_anchor_leads_past_it(server, run, reference):
    before = run.version
    server.wait_for_version(before)
    assert failures_of(server, "corrupt") == 0
    server.post("/weightwire/pin", {"version": before})
    parts = set((run.bucket / "deltas").rglob("*.safetensors"))
    after = run.step()
    (part,) = set((run.bucket / "deltas").rglob("*.safetensors")) - parts
    part.write_bytes(part.read_bytes()[:-1] + b"\0")
    server.post("/weightwire/unpin", {})
    status = server.wait_for(lambda status: status["last_error"] is not None, "an error")
    assert status["version"] == before
    metrics = server.metrics
    assert failures_of(server, "corrupt") > 0
    assert (metrics["weightwire_version"], metrics["weightwire_lag_versions"]) == (before, 1)
    assert server.answers() == reference.answers(run.checkpoint(before), plain=True)
    command = [os.environ["WEIGHTWIRE"], "anchor", f"{run.bucket}@{after}", "--from", str(run.checkpoint(after))]
    subprocess.run(command, check=True)
    server.wait_for_version(after)
    assert server.answers() == reference.answers(run.checkpoint(after), plain=True)
    status = server.wait_for(lambda status: status["last_error"] is None, "the end of the trouble")
    metrics = server.metrics
    assert (metrics["weightwire_version"], metrics["weightwire_lag_versions"]) == (after, 0)
    assert metrics["weightwire_updates_total"] == metrics["weightwire_commit_duration_seconds_count"] > 0
    assert metrics["weightwire_received_bytes_total"] == status["bytes_received"] > 0
    assert metrics["weightwire_lag_seconds"] == 0
    labels = f'package_version="{ww.__version__}",run_id="{status["run_id"]}"'
    assert f"weightwire_info{{{labels}}} 1.0" in server.get("/metrics", raw=True).decode()


def test_without_its_bucket_it_goes_on_and_then_catches_up(server, run, reference):
    before = run.version
    server.wait_for_version(before)
    away = run.bucket.with_name("away")
    os.rename(run.bucket, away)
    run.bucket.write_text("not a directory")
    server.wait_for(lambda status: status["last_error"] is not None, "an error")
    assert server.answers() == reference.answers(run.checkpoint(before), plain=True)
    run.bucket.unlink()
    os.rename(away, run.bucket)
    after = run.step()
    server.wait_for_version(after)
    assert server.answers() == reference.answers(run.checkpoint(after), plain=True)


def test_after_half_a_commit_nothing_is_answered_any_more(server, run, fault):
    server.wait_for_version(run.version)
    fault.write_text("half")
    result = server.generate_in_background(PROMPTS[0], 900)
    run.step()
    assert server.process.wait(WAIT_SECONDS) == 70
    assert "the weights are neither the old version nor version" in server.log.read_text()
    try:
        _, _, spans, _ = result()
    except OSError:
        return
    # What was generated before is handed out.
    assert {version for version, _, _ in spans} <= {run.version - 1}
