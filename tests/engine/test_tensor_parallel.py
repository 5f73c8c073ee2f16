"""Two workers, each with its slices; tied weights; what is left when one is killed, or writes something else."""

import os
import signal

from conftest import PROMPTS, WAIT_SECONDS, TrainedRun


def test_two_workers_follow_exactly(tmp_path, start):
    run = TrainedRun(tmp_path, tied=True)
    fault = tmp_path / "fault"
    options = {"plugins": ["plain_layout", "fault"], "arguments": ["--tensor-parallel-size", "2"]}
    options["ENGINE_TESTS_FAULT"] = str(fault)
    server = start(run.make_mirror(), run.bucket, **options).wait_until_up()
    first = server.answers()
    for _ in range(5):
        server.wait_for_version(run.step())
    version, (tokens, logprobs, spans, _) = server.generate_across_an_update(run, PROMPTS[0], 900)
    assert [made_by for made_by, _, _ in spans] == [version - 1, version]
    answers = server.answers()
    assert answers != first
    assert server.wait_for(lambda status: status["last_verify"] is not None, "a comparison")["last_error"] is None
    # A worker that is gone ends the server: it neither answers nor hangs.
    os.kill(server.pid("Worker_TP1"), signal.SIGKILL)
    assert server.process.wait(WAIT_SECONDS) == 70

    fresh = start(run.mirror, run.bucket, **options).wait_until_up()
    assert fresh.status["version"] == version
    assert fresh.answers() == answers
    switch = spans[0][2]
    assert fresh.generate(PROMPTS[0] + tokens[:switch], 900 - switch)[:2] == (tokens[switch:], logprobs[switch:])

    # One worker holds the new version, and the other something else.
    fault.write_text("one worker")
    run.step()
    assert fresh.process.wait(WAIT_SECONDS) == 70
    log = fresh.log.read_text()
    assert "the weights are neither the old version nor version" in log
    assert "what was written does not read back" in log
    run.close()
