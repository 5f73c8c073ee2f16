"""What a program says on standard error: prefixes, JSON lines, -q and -v, and no control characters."""

import json
import re

from exit_statuses import INVALID_ARGUMENT, NOT_FOUND
from test_command_roundtrip import chain, succeed, weightwire, write_by_hand

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


def test_an_error_is_one_line(tmp_path):
    result = weightwire("digest", tmp_path / "missing")
    assert result.returncode == NOT_FOUND
    assert re.fullmatch(r"error: .*missing.*\n", result.stderr)


def test_with_json_an_error_ends_with_a_line_of_json(tmp_path):
    result = weightwire("digest", tmp_path / "missing", "--json")
    text, line = result.stderr.splitlines()
    event = json.loads(line)
    assert text == f"error: {event['message']}"
    assert re.fullmatch(TIME, event["time"])
    assert {key: event[key] for key in ("event", "code", "exit_code")} == {
        "event": "error",
        "code": "not_found",
        "exit_code": NOT_FOUND,
    }
    result = weightwire("digest", "--jsn", "--json")
    assert lines(result.stderr.splitlines()[-1])[0]["code"] == "invalid_argument"
    assert result.returncode == INVALID_ARGUMENT


def test_log_format_json_makes_every_line_json(tmp_path, monkeypatch):
    monkeypatch.setenv("WEIGHTWIRE_POL_INTERVAL", "1")
    result = weightwire("digest", tmp_path / "missing", "--log-format", "json")
    warning, error = lines(result.stderr)
    assert (warning["event"], warning["level"]) == ("warning", "warning")
    assert "WEIGHTWIRE_POLL_INTERVAL?" in warning["message"]
    assert (error["event"], error["level"], error["exit_code"]) == ("error", "error", NOT_FOUND)
    (error,) = lines(weightwire("--log-format=json", "nonsense").stderr)
    assert error["code"] == "invalid_argument"
    monkeypatch.setenv("WEIGHTWIRE_LOG_FORMAT", "json")
    assert lines(weightwire("nonsense").stderr)[0]["code"] == "invalid_argument"


def test_an_unknown_variable_causes_one_warning(tmp_path, monkeypatch):
    write_by_hand(tmp_path / "state", chain(1)[0])
    monkeypatch.setenv("WEIGHTWIRE_POL_INTERVAL", "1")
    result = weightwire("digest", tmp_path / "state")
    assert result.returncode == 0
    assert result.stderr == (
        "warning: WEIGHTWIRE_POL_INTERVAL is unknown and has no effect; did you mean WEIGHTWIRE_POLL_INTERVAL?\n"
    )


def test_verbose_shows_requests(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state-home"))
    write_by_hand(tmp_path / "state", chain(1)[0])
    succeed("publish", tmp_path / "run", tmp_path / "state")
    assert weightwire("log", tmp_path / "run").stderr == ""
    said = weightwire("log", tmp_path / "run", "-v").stderr
    assert "get run.json" in said
    events = lines(weightwire("log", tmp_path / "run", "-v", "--log-format", "json").stderr)
    assert {event["level"] for event in events} == {"debug"}


def test_control_characters_do_not_reach_the_terminal(tmp_path):
    result = weightwire("digest", tmp_path / "a\x1b[2Jb\nc")
    assert "\x1b" not in result.stderr and result.stderr.count("\n") == 1
    assert "\\u001b" in result.stderr
