"""A server without the plugin, brought along by `weightwire follow --vllm` through vLLM's own routes, in a pause."""

import os
import signal
import subprocess
import time

import pytest
from conftest import ONE_PROCESS, PROMPTS, WAIT_SECONDS, Server, TrainedRun


@pytest.fixture(scope="module")
def server(run, import_path, tmp_path_factory):
    log = tmp_path_factory.mktemp("server") / "log"
    variables = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_PLUGINS": "", **ONE_PROCESS}
    server = Server(run.make_mirror(), import_path, log, **variables)
    yield server.wait_until_up()
    server.stop()


@pytest.fixture
def follow(run, server):
    processes = []

    def start_following(run=run):
        url = f"http://127.0.0.1:{server.port}"
        command = [os.environ["WEIGHTWIRE"], "follow", run.bucket, run.mirror, "--vllm", url, "--poll-interval", "50ms"]
        processes.append(subprocess.Popen(command))
        return processes[-1]

    yield start_following
    for process in processes:
        process.terminate()
        process.wait(WAIT_SECONDS)


def wait_for_label(server, version):
    deadline = time.monotonic() + WAIT_SECONDS
    while not (label := server.get("/weight_info")["weight_version"]).startswith(f"{version}-"):
        assert time.monotonic() < deadline, f"version {version} did not come: {label}"
        time.sleep(0.02)
    return label


def test_it_is_brought_along_exactly_in_the_middle_of_a_generation(server, run, follow, reference):
    process = follow()
    wait_for_label(server, 0)  # which it gets with a first load
    assert server.answers() == reference.answers(run.checkpoint(0), plain=False)
    for _ in range(20):  # until one falls into the other
        result = server.generate_in_background(PROMPTS[0], 900)
        after = run.step()
        wait_for_label(server, after)
        tokens, logprobs, spans, _ = result()
        if len(spans) > 1:
            break
    assert server.answers() == reference.answers(run.checkpoint(after), plain=False)
    assert [version for version, _, _ in spans] == [after - 1, after]
    switch = spans[0][2]
    new = reference.generate(run.checkpoint(after), [(PROMPTS[0] + tokens[:switch], 900 - switch)], plain=False)
    assert new == [(tokens[switch:], logprobs[switch:])]
    process.terminate()
    assert process.wait(WAIT_SECONDS) == 0


def test_a_follower_that_was_killed_goes_on_when_it_comes_again(server, run, follow, reference):
    process = follow()
    wait_for_label(server, run.version)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    missed = run.step()
    server.post("/pause?mode=keep", {})  # as if it had been killed in the pause
    follow()
    wait_for_label(server, missed)
    assert server.answers() == reference.answers(run.checkpoint(missed), plain=False)


def test_a_version_of_another_run_is_not_taken_for_the_same(server, run, follow, reference, tmp_path):
    process = follow()
    label = wait_for_label(server, run.version)
    process.terminate()
    process.wait(WAIT_SECONDS)
    other = TrainedRun(tmp_path)
    while other.version < run.version:
        other.step(share=40)
    process = follow(other)
    deadline = time.monotonic() + WAIT_SECONDS
    while server.get("/weight_info")["weight_version"] == label:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    wait_for_label(server, other.version)
    assert server.answers() == reference.answers(other.checkpoint(other.version), plain=False)
    other.close()
