"""Options that every command has, and those of every command that uses a store."""

import json
import os
import socket
import time

import pytest
from exit_statuses import INVALID_ARGUMENT, UNAVAILABLE
from test_command_roundtrip import chain, succeed, weightwire, write_by_hand

RUN_COMMANDS = ["publish", "follow", "checkout", "log", "followers", "anchor", "verify", "gc", "init"]


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state-home"))
    for number, state in enumerate(chain(2)):
        write_by_hand(tmp_path / f"{number}.safetensors", state)
        succeed("publish", tmp_path / "run", tmp_path / f"{number}.safetensors")
    return tmp_path / "run"


@pytest.fixture
def unreachable(monkeypatch):
    """The URL of a store that nobody serves."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"s3://bucket/run?endpoint=http://127.0.0.1:{taken.getsockname()[1]}"


def test_global_options_work_before_and_after_the_command(run, tmp_path):
    for arguments in (["--json", "log", run], ["log", "--json", run], ["log", run, "--json", "--threads", 1]):
        assert len(json.loads(succeed(*arguments))["versions"]) == 2
    before = json.loads(succeed("--threads", 2, "--json", "digest", tmp_path / "0.safetensors"))
    assert before == json.loads(succeed("digest", tmp_path / "0.safetensors", "--threads", 2, "--json"))
    assert weightwire("log", "--version").stdout == weightwire("--version").stdout
    assert weightwire("log", run, "--quiet", "--verbose").returncode == INVALID_ARGUMENT


def test_a_name_of_a_command_is_an_ordinary_argument_after_the_command(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    succeed("checkout", run, "log")
    assert (tmp_path / "log" / "model.safetensors").exists()


@pytest.mark.parametrize("command", RUN_COMMANDS)
def test_every_command_of_a_run_has_the_options_of_a_store(command):
    text = " ".join(succeed(command, "--help").split())
    assert "--retry-for TIME" in text
    assert "--max-bytes-per-second SIZE" in text


@pytest.mark.parametrize("command", ["diff", "apply", "inspect", "digest"])
def test_commands_of_files_do_not(command):
    assert "--retry-for" not in succeed(command, "--help")


@pytest.mark.parametrize("command", RUN_COMMANDS)
def test_retry_for_bounds_the_retries(command, unreachable, tmp_path):
    write_by_hand(tmp_path / "c.safetensors", chain(1)[0])
    more = {"publish": [tmp_path / "c.safetensors"], "follow": [tmp_path / "m"], "checkout": [tmp_path / "v"]}
    began = time.monotonic()
    result = weightwire(command, unreachable, *more.get(command, []), "--retry-for", "1s")
    took = time.monotonic() - began
    assert result.returncode == UNAVAILABLE, result.stderr
    assert 0.9 <= took < 20


def test_retry_for_zero_tries_once_and_the_variable_counts(unreachable, monkeypatch):
    monkeypatch.setenv("WEIGHTWIRE_RETRY_FOR", "0s")
    result = weightwire("log", unreachable)
    assert result.returncode == UNAVAILABLE
    assert "tried" not in result.stderr


def test_the_rate_is_limited(run, tmp_path):
    size = os.path.getsize(tmp_path / "0.safetensors")
    began = time.monotonic()
    succeed("checkout", run, tmp_path / "v", "--max-bytes-per-second", size)
    assert time.monotonic() - began > 0.9
    assert weightwire("log", run, "--max-bytes-per-second", "0").returncode == INVALID_ARGUMENT
