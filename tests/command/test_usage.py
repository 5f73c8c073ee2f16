"""How the program explains itself: help, wrong arguments, completion, and the reference that is made from it."""

import json
import subprocess
import sys

import pytest
from exit_statuses import INVALID_ARGUMENT
from test_command_roundtrip import REPOSITORY, WEIGHTWIRE, succeed, succeed_json, weightwire

DESCRIBED = succeed_json("help")
COMMANDS = [command["name"] for command in DESCRIBED["commands"]]


def usage_error(*arguments):
    result = weightwire(*arguments)
    assert result.returncode == INVALID_ARGUMENT
    assert result.stdout == ""
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    return result.stderr.removeprefix("error: ").strip()


def test_without_arguments_it_prints_help_and_fails():
    result = weightwire()
    assert (result.returncode, result.stdout) == (INVALID_ARGUMENT, "")
    assert result.stderr == succeed("--help")


def test_misspelled_words_get_a_suggestion():
    assert usage_error("pubish", "run", "f") == "no command 'pubish'; did you mean 'publish'?"
    assert usage_error("folow", "run", "mirror", "--once") == "no command 'folow'; did you mean 'follow'?"
    said = usage_error("follow", "run", "mirror", "--poll-intervall", "3s")
    assert said == "'weightwire follow' has no option '--poll-intervall'; did you mean '--poll-interval'?"
    assert "did you mean '--threads'?" in usage_error("log", "run", "--thread=3")
    assert usage_error("help", "pubish") == "no command 'pubish'; did you mean 'publish'?"
    assert usage_error("frobnicate") == "no command 'frobnicate'; see 'weightwire --help'"
    assert usage_error("log", "run", "more") == "'weightwire log' takes no argument 'more'; see 'weightwire log --help'"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_begins_with_what_it_does_and_fits(command):
    text = succeed("help", command)
    assert text == succeed(command, "--help")
    lines = text.splitlines()
    assert lines[0].endswith(".") or lines[1].endswith(".")
    assert f"Usage: weightwire {command} [OPTIONS]" in text
    for line in lines:
        assert len(line) <= 100 or line.startswith("  weightwire "), line
    for wrong in ("REQUIRED", "TEXT:", "{"):
        assert wrong not in text


def test_the_help_of_the_program_names_all_commands_and_statuses():
    text = succeed("help")
    for command in COMMANDS:
        assert f"  {command} " in text
    for error in DESCRIBED["errors"]:
        assert f"{error['exit_code']}  {error['code']}:" in text


def test_version_is_a_command():
    assert succeed("version") == succeed("--version")
    assert succeed_json("version")["package_version"] in succeed("version")


@pytest.mark.parametrize(
    ("written", "meant"),
    [("s3:/b/run", "s3://b/run"), ("s3//b/run", "s3://b/run"), ("S3://b/run", "s3://b/run"), ("hf:/x", "hf://x")],
)
def test_a_path_like_a_url_is_refused(written, meant, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert f"did you mean {meant}?" in usage_error("init", written)
    assert not list(tmp_path.iterdir())


# --- completion ---


def completed(line):
    """What bash offers at the end of the line."""
    words = line.split(" ")
    script = f"""
        {succeed("completion", "bash")}
        COMP_WORDS=({" ".join(f"'{word}'" for word in words)})
        COMP_CWORD={len(words) - 1}
        _weightwire
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    ran = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert ran.stderr == ""
    return [word for word in ran.stdout.split("\n") if word]


def test_bash_completes_commands_options_and_values(tmp_path, monkeypatch):
    assert completed("weightwire pub") == ["publish"]
    assert set(completed("weightwire ")) == set(COMMANDS)
    assert completed("weightwire follow run dir --poll") == ["--poll-interval"]
    assert completed("weightwire follow --threads 2 run --log-form") == ["--log-format"]
    assert completed("weightwire --log-format ") == ["text", "json"]
    assert completed("weightwire diff a b --mode ") == ["auto", "fast"]
    assert completed("weightwire help publ") == ["publish"]
    assert completed("weightwire completion ") == ["bash", "zsh", "fish"]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "step-10").mkdir()
    assert completed("weightwire digest st") == ["step-10"]
    assert completed("weightwire follow run dir --poll-interval ") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_name_every_option(shell):
    script = succeed("completion", shell)
    for command in DESCRIBED["commands"]:
        for option in command["options"]:
            for name in option["names"]:
                assert (name.lstrip("-") if shell == "fish" else name) in script
    said = weightwire("completion", "tcsh")
    assert said.returncode == INVALID_ARGUMENT and "fish" in said.stderr


# --- the reference ---


def test_the_reference_is_what_the_program_says():
    tool = REPOSITORY / "tools/make_reference.py"
    ran = subprocess.run([sys.executable, tool, "--program", WEIGHTWIRE, "--check"], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr + "run ./dev reference, and commit what it writes"


def test_every_option_is_described():
    for command in DESCRIBED["commands"]:
        for option in command["arguments"] + command["options"]:
            assert option["help"], (command["name"], option["names"])
            assert not option["help"].endswith("."), (command["name"], option["names"])
    json.dumps(DESCRIBED)
