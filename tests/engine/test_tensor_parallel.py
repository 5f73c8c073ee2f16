"""Two workers, each with its slices; tied weights; what is left when one of them is killed."""

import os
import signal

from conftest import PROMPTS, TrainedRun


def test_two_workers_follow_exactly(tmp_path, start):
    run = TrainedRun(tmp_path, tied=True)
    options = {"plugins": ["plain_layout"], "arguments": ["--tensor-parallel-size", "2"]}
    server = start(run.make_mirror(), run.bucket, **options).wait_until_up()
    first = server.answers()
    for _ in range(5):
        server.wait_for_version(run.step())
    version, (tokens, logprobs, spans, _) = server.generate_across_an_update(run, PROMPTS[0], 900)
    assert [made_by for made_by, _, _ in spans] == [version - 1, version]
    answers = server.answers()
    assert answers != first
    assert server.wait_for(lambda status: status["last_check"] is not None, "a comparison")["last_error"] is None
    server.stop()

    fresh = start(run.mirror, run.bucket, **options).wait_until_up()
    assert fresh.status["version"] == version
    assert fresh.answers() == answers
    switch = spans[0][2]
    assert fresh.generate(PROMPTS[0] + tokens[:switch], 900 - switch)[:2] == (tokens[switch:], logprobs[switch:])

    # A worker that is gone ends the server: it neither answers nor hangs.
    os.kill(fresh.pid("Worker_TP1"), signal.SIGKILL)
    assert fresh.process.wait(60) == 70
    run.close()
