"""What cannot be done exactly is refused, and nothing is touched: weights that two modules share and pack."""

from conftest import TrainedRun


def test_tied_weights_that_are_packed_stay_as_they_are(tmp_path, start, reference):
    run = TrainedRun(tmp_path, tied=True)
    server = start(run.make_mirror(), run.bucket).wait_until_up()
    answers = reference.answers(run.checkpoint(0), plain=False)
    assert server.answers() == answers
    run.step()
    status = server.wait_for(lambda status: status["last_error"] is not None, "a refusal")
    assert "share a weight" in status["last_error"]
    assert (status["version"], status["newest"], status["updates"]) == (0, 1, 0)
    assert server.answers() == answers
    run.close()
