"""The command, the Python package and the environment have the same names and defaults, or a stated reason.

src/runner/settings.h declares each option that several surfaces share. `weightwire help --json` prints that table, and
what the program really accepts; the package's signatures are read here.
"""

import inspect
import json
import os
import subprocess

import pytest
import weightwire as ww
from weightwire import _core

CLASSES = {
    "Publisher": ww.Publisher.__init__,
    "Follower": ww.Follower.__init__,
    "load": ww.load,
    "Run.load": ww.Run.load,
    "Run.checkout": ww.Run.checkout,
}

COMMAND_ONLY = {
    "publish": {
        "--step": "an argument of Publisher.publish",
        "--dry-run": "a program in Python compares its own weights",
    },
    "anchor": {
        "--from": "no anchor is written by hand in Python",
        "--dry-run": "as above",
    },
    "follow": {
        "--once": "Follower.wait or poll",
        "--until": "Follower.wait(version)",
        "--timeout": "an argument of Follower.wait",
        "--exec": "a program in Python acts after update.apply()",
        "--vllm": "as --exec",
    },
    "log": {"--last": "an argument of Run.versions", "--watch": "a loop over Run.newest"},
    "verify": {"--since": "only the command verifies a whole run"},
    "gc": {
        "--keep-anchors": "only the command runs gc",
        "--keep-versions": "only the command runs gc",
        "--min-age": "only the command runs gc",
        "--grace": "only the command runs gc",
        "--dry-run": "only the command runs gc",
    },
}
COMMANDS_ON_FILES = {"diff", "apply", "inspect", "digest", "help", "version", "completion"}
"""They have no counterpart in Python, where arrays take the place of files."""
GLOBAL_ONLY = {"--json", "--quiet", "--verbose", "--help", "--version"}

PYTHON_ONLY = {
    "Publisher": {
        "dtype": "a command publishes a checkpoint as it is",
        "lora": "a checkpoint is an adapter or not",
        "tokenizer": "a checkpoint directory has its files",
        "extra_files": "a checkpoint directory has its files",
        "optimizer": "only a trainer has one",
        "base": "a command keeps its base copy on disk",
        "max_pending_versions": "a command sends one version and ends",
        "when_full": "a command sends one version and ends",
        "rebuild": "a command always rebuilds",
        "distributed": "a command is one process",
        "rank_timeout": "a command is one process",
        "exit_timeout": "a command sends everything, or fails after --retry-for",
    },
    "Follower": {},
    "load": {"framework": "a command writes files"},
    "Run.load": {"framework": "a command writes files"},
    "Run.checkout": {},
}

DOES_NOT_WAIT = {
    "Publisher": {"publish"},  # it has a twin all the same
    "Update": set(),
    "Ticket": {"done"},
    "Follower": set(),
    "Run": set(),
}


@pytest.fixture(scope="module")
def program():
    printed = subprocess.run(
        [os.environ["WEIGHTWIRE"], "help", "--json"], capture_output=True, text=True, check=True, timeout=60
    )
    return json.loads(printed.stdout)


def options_of(program, command):
    """By each of their long names."""
    found = program if command == "*" else next(entry for entry in program["commands"] if entry["name"] == command)
    return {name: option for option in found["options"] for name in option["names"] if name.startswith("--")}


def python_default(row):
    """What the default of a row of the table is in Python."""
    text, kind = row["default"], row["type"]
    if kind == "flag":
        return text == "1"
    if not text or text == "never":
        return None
    if kind == "duration":
        return _core.parse_duration(text)
    return int(text) if kind in ("count", "count_or_never", "size") else text


def keywords(function):
    parameters = inspect.signature(function).parameters.values()
    return {parameter.name: parameter.default for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}


def test_each_setting_is_an_option_of_its_commands(program):
    for row in program["settings"]:
        for command in row["commands"]:
            option = options_of(program, command).get(row["option"])
            assert option is not None, f"{command} has no {row['option']}"
            assert option["variable"] == row["variable"], (command, row["option"])
            if row["type"] != "flag" and row["default"] is not None:  # help says in words what happens without one
                assert option["default"] == row["default"], (command, row["option"])


def test_each_option_of_a_command_is_a_setting_or_has_a_reason(program):
    for entry in program["commands"]:
        command = entry["name"]
        table = {row["option"] for row in program["settings"] if command in row["commands"]}
        known = table | set(COMMAND_ONLY.get(command, ()))
        if command not in COMMANDS_ON_FILES:
            assert set(options_of(program, command)) - known == set(), command
        assert all(
            option["variable"] is None for name, option in options_of(program, command).items() if name not in table
        )
    table = {row["option"] for row in program["settings"] if "*" in row["commands"]}
    assert set(options_of(program, "*")) - table == GLOBAL_ONLY


def test_no_reason_outlives_its_option(program):
    for command, reasons in COMMAND_ONLY.items():
        assert set(reasons) - set(options_of(program, command)) == set(), command
    for name, function in CLASSES.items():
        assert set(PYTHON_ONLY[name]) - set(keywords(function)) == set(), name


@pytest.mark.parametrize("name", CLASSES)
def test_python_has_each_setting_with_its_default(program, name):
    given = keywords(CLASSES[name])
    table = {row["python_name"]: row for row in program["settings"] if name in row["python"]}
    assert set(given) - set(table) == set(PYTHON_ONLY[name])
    for argument, row in table.items():
        assert given[argument] == python_default(row), argument


def test_settings_that_a_surface_lacks_say_why(program):
    everywhere = [row for row in program["settings"] if row["commands"] and row["python"] and row["variable"]]
    for row in program["settings"]:
        if row not in everywhere:
            assert row["note"], row["name"]


def test_a_default_is_written_the_same_in_python_and_in_the_command():
    """The names of rows are those of arguments: no surface translates one."""
    for row in _core.settings():
        assert row["option"] in (f"--{row['name']}", f"--no-{row['name']}")
        assert row["python_name"] == row["name"].replace("-", "_")
        assert row["environment"] in (None, "WEIGHTWIRE_" + row["python_name"].upper())


@pytest.mark.parametrize(
    "kind", [ww.Publisher, ww.Follower, ww.Run, ww.Update, ww.Ticket], ids=lambda kind: kind.__name__
)
def test_each_method_has_a_twin_for_event_loops(kind):
    """Properties do not wait. A method has a twin with `_async` after its name, or is known not to wait."""
    methods = {name for name, _ in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")}
    waiting = {name for name in methods if not name.endswith("_async")}
    assert {name for name in waiting if f"{name}_async" not in methods} - DOES_NOT_WAIT[kind.__name__] == set()
    for name in waiting:
        twin = getattr(kind, f"{name}_async", None)
        if twin is not None:
            assert list(inspect.signature(twin).parameters) == list(inspect.signature(getattr(kind, name)).parameters)


def test_what_is_exported_has_a_docstring():
    for name in ww.__all__:
        assert inspect.getdoc(getattr(ww, name)), name
