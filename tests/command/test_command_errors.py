"""The command when something is wrong: one clear sentence, the right exit status, and nothing touched."""

import os
import signal
import subprocess
import time
from functools import partial

import pytest
from exit_statuses import CORRUPT, INVALID_ARGUMENT, LOCAL_IO, MISMATCH, NOT_FOUND, UNSUPPORTED
from test_command_roundtrip import (
    WEIGHTWIRE,
    WEIGHTWIRE_BENCH,
    chain,
    snapshot,
    succeed,
    weightwire,
    write_by_hand,
    write_sharded,
)


@pytest.fixture
def files(tmp_path):
    """Three consecutive states 0, 1, 2, deltas 01 and 12 between them."""
    for number, state in enumerate(chain(3)):
        write_by_hand(tmp_path / f"{number}", state)
    for a, b in ((0, 1), (1, 2)):
        succeed("diff", tmp_path / f"{a}", tmp_path / f"{b}", "-o", tmp_path / f"{a}{b}", "--no-other-formats")
    return tmp_path


def refused(files, status, words, *arguments, program=WEIGHTWIRE):
    """Runs it: the status, one line on stderr with these words, nothing on stdout, no file other than before."""
    before = snapshot(files)
    result = weightwire(*arguments, program=program)
    assert result.returncode == status, result.stderr
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1 and result.stderr.endswith("\n")
    for word in [words] if isinstance(words, str) else words:
        assert word in result.stderr
    assert snapshot(files) == before


def test_missing_files(files):
    missing = files / "missing"
    refused(files, NOT_FOUND, "missing", "diff", missing, files / "1")
    refused(files, NOT_FOUND, "missing", "diff", files / "0", missing, "-o", files / "delta")
    refused(files, NOT_FOUND, "missing", "apply", missing, files / "01", "-o", files / "out")
    refused(files, NOT_FOUND, "missing", "apply", missing, files / "01", "--in-place")
    refused(files, NOT_FOUND, "missing", "apply", missing, "--in-place")
    refused(files, NOT_FOUND, "missing", "apply", files / "0", missing, "-o", files / "out")
    refused(files, NOT_FOUND, "missing", "inspect", missing)
    refused(files, NOT_FOUND, "missing", "inspect", files / "01", "--base", missing)
    refused(files, NOT_FOUND, "missing", "digest", missing)
    (files / "empty").mkdir()
    refused(files, NOT_FOUND, "not a checkpoint", "digest", files / "empty")
    refused(files, NOT_FOUND, "nowhere", "diff", files / "0", files / "1", "-o", files / "nowhere/delta")
    refused(files, NOT_FOUND, "nowhere", "apply", files / "0", files / "01", "-o", files / "nowhere/out")
    write_sharded(files / "sharded", chain(1)[0])
    refused(files, NOT_FOUND, "nowhere", "apply", files / "sharded", files / "01", "-o", files / "nowhere/out")


def test_what_is_no_file(files):
    os.mkfifo(files / "pipe")
    refused(files, INVALID_ARGUMENT, "pipe", "digest", files / "pipe")
    refused(files, INVALID_ARGUMENT, "pipe", "inspect", files / "pipe")
    refused(files, INVALID_ARGUMENT, "pipe", "apply", files / "0", files / "pipe", "-o", files / "out")


def test_weights_with_a_second_name_are_not_changed_in_place(files):
    os.link(files / "0", files / "also")
    refused(files, INVALID_ARGUMENT, ["hard link", "-o"], "apply", files / "0", files / "01", "--in-place")


@pytest.mark.parametrize("size", [0, 5, 100, 1000, -1])
def test_truncated_files(files, size):
    delta, state = (files / "01").read_bytes(), (files / "0").read_bytes()
    (files / "cut").write_bytes(delta[:size])
    refused(files, CORRUPT, "cut", "apply", files / "0", files / "cut", "-o", files / "out")
    refused(files, CORRUPT, "cut", "apply", files / "0", files / "cut", "--in-place")
    refused(files, CORRUPT, "cut", "inspect", files / "cut")
    (files / "cut").write_bytes(state[:size])
    refused(files, CORRUPT, "cut", "digest", files / "cut")
    refused(files, CORRUPT, "cut", "diff", files / "0", files / "cut", "-o", files / "delta")


def test_damaged_delta(files):
    delta = (files / "01").read_bytes()
    for at in range(8, len(delta), len(delta) // 50):
        damaged = bytearray(delta)
        damaged[at] ^= 0x10
        (files / "damaged").write_bytes(damaged)
        before = snapshot(files)
        for where in (["-o", files / "out"], ["--in-place"]):
            result = weightwire("apply", files / "0", files / "damaged", *where)
            assert result.returncode in (CORRUPT, UNSUPPORTED), at
            assert result.stderr.count("\n") == 1 and "damaged" in result.stderr
        assert snapshot(files) == before
    # The good one still works after the bad ones.
    succeed("apply", files / "0", files / "01", "--in-place")
    assert (files / "0").read_bytes() == (files / "1").read_bytes()


def test_not_a_delta(files):
    refused(files, UNSUPPORTED, "not a weightwire delta", "apply", files / "0", files / "1", "-o", files / "out")
    refused(files, UNSUPPORTED, "not a weightwire delta", "inspect", files / "1")


def test_wrong_base(files):
    for where in (["-o", files / "out"], ["--in-place"]):
        refused(files, MISMATCH, ["another base", "12"], "apply", files / "0", files / "12", *where)
        refused(files, MISMATCH, "another base", "apply", files / "2", files / "01", *where)
        refused(
            files, MISMATCH, "already is at", "apply", files / "0", files / "01", files / "01", files / "12", *where
        )
        refused(files, MISMATCH, "another base", "apply", files / "0", files / "12", files / "01", *where)
    # One byte in a tensor that no change touches.
    first, second, _ = chain(3)
    write_by_hand(files / "a", {**first, "still": ("U8", [3], b"abc")})
    write_by_hand(files / "b", {**second, "still": ("U8", [3], b"abc")})
    write_by_hand(files / "c", {**first, "still": ("U8", [3], b"abd")})
    succeed("diff", files / "a", files / "b", "-o", files / "ab")
    refused(files, MISMATCH, "does not touch", "apply", files / "c", files / "ab", "-o", files / "out")


def test_applied_twice(files):
    for where in (["-o", files / "out"], ["--in-place"]):
        refused(files, MISMATCH, "already is at the state after", "apply", files / "1", files / "01", *where)
    succeed("apply", files / "0", files / "01", "--in-place")
    refused(files, MISMATCH, "already is at the state after", "apply", files / "0", files / "01", "--in-place")


def test_applied_twice_when_the_layout_changed(files):
    second = chain(2)[1]
    write_by_hand(files / "more", {**second, "z": ("U8", [3], b"abc")})
    succeed("diff", files / "0", files / "more", "-o", files / "delta")
    refused(files, MISMATCH, "applied already", "apply", files / "more", files / "delta", "-o", files / "out")


def test_other_names_shapes_or_types(files):
    state = chain(1)[0]
    dtype, shape, content = state["a"]
    others = {
        "renamed": {("x" if name == "a" else name): spec for name, spec in state.items()},
        "reshaped": {**state, "a": (dtype, shape[::-1], content)},
        "retyped": {**state, "a": ("F16", shape, content)},
    }
    for name, other in others.items():
        write_by_hand(files / name, other)
        words = ["names, types or shapes", name]
        refused(files, MISMATCH, words, "apply", files / name, files / "01", "-o", files / "out")
        refused(files, MISMATCH, words, "apply", files / name, files / "01", "--in-place")
        refused(files, MISMATCH, name, "inspect", files / "01", "--base", files / name)
        refused(files, MISMATCH, words, "codec", files / "0", files / name, program=WEIGHTWIRE_BENCH)


def test_existing_output(files):
    (files / "taken").write_text("mine")
    (files / "directory").mkdir()
    for out in ("taken", "directory", "directory/"):
        words = ["already exists", out]
        refused(files, INVALID_ARGUMENT, words, "apply", files / "0", files / "01", "-o", f"{files}/{out}")
    refused(files, INVALID_ARGUMENT, "--force", "diff", files / "0", files / "1", "-o", files / "taken")
    succeed("diff", files / "0", files / "1", "-o", files / "taken", "--force")
    assert (files / "taken").read_bytes() == (files / "01").read_bytes()
    words = ["already exists", "--force"]
    refused(files, INVALID_ARGUMENT, words, "apply", files / "0", files / "01", "-o", files / "taken")
    folder = files / "directory"
    refused(files, INVALID_ARGUMENT, "already exists", "apply", files / "0", files / "01", "-o", folder, "--force")
    refused(files, INVALID_ARGUMENT, "--in-place", "apply", files / "0", files / "01", "-o", files / "0", "--force")
    succeed("apply", files / "0", files / "01", "-o", files / "taken", "--force")
    assert succeed("digest", files / "taken") == succeed("digest", files / "1")
    assert not list(files.glob(".weightwire*"))


def test_deltas_go_through_pipes(files):
    assert weightwire("diff", files / "0", files / "1", "--json", "-o", "-").returncode == INVALID_ARGUMENT
    made = subprocess.run([WEIGHTWIRE, "diff", files / "0", files / "1", "-o", "-"], capture_output=True, check=True)
    assert made.stdout == (files / "01").read_bytes()
    for delta in ("-", files / "12"):
        base = files / "0" if delta == "-" else files / "out1"
        out = files / ("out1" if delta == "-" else "out2")
        subprocess.run(
            [WEIGHTWIRE, "apply", base, delta, "-o", out], input=made.stdout, capture_output=True, check=True
        )
    assert succeed("digest", files / "out2") == succeed("digest", files / "2")
    shown = subprocess.run([WEIGHTWIRE, "inspect", "-"], input=made.stdout, capture_output=True, check=True)
    assert b"format version 1" in shown.stdout
    broken = subprocess.run([WEIGHTWIRE, "inspect", "-"], input=made.stdout[:99], capture_output=True, check=False)
    assert broken.returncode == CORRUPT and b"standard input" in broken.stderr


def test_wrong_arguments(files):
    wrong = [
        ["nonsense"],
        ["diff"],
        ["diff", files / "0"],
        ["diff", files / "0", files / "1", "--mode", "best"],
        ["diff", files / "0", files / "1", "--threads", "0"],
        ["diff", files / "0", files / "1", "--threads", "many"],
        ["diff", files / "0", files / "1", "--nonsense"],
        ["apply", files / "0", files / "01"],
        ["apply", files / "0", "-o", files / "out"],
        ["apply", files / "0", files / "01", "-o", files / "out", "--in-place"],
        ["inspect"],
        ["inspect", files / "01", "--layout", files / "0"],
        ["diff", files / "0", files / "1", "--mode", "dense"],
        ["apply", files / "0", files / "01", "--force", "--in-place"],
        ["apply", files / "0", "-", "-", "-o", files / "out"],
        ["digest"],
        ["bench"],
    ]
    for arguments in wrong:
        refused(files, INVALID_ARGUMENT, "", *arguments)


def test_wrong_arguments_of_the_benchmark(files):
    bench = partial(refused, files, program=WEIGHTWIRE_BENCH)
    bench(INVALID_ARGUMENT, "weightwire-bench codec --help", "codec", files / "0")
    bench(INVALID_ARGUMENT, "not in range 7 to", "codec", files / "0", files / "1", "--repeat", "3")
    bench(INVALID_ARGUMENT, "weightwire-bench --help", "nonsense")
    bench(NOT_FOUND, "missing", "codec", files / "missing", files / "1")


def test_unknown_instruction_set(files):
    result = weightwire("digest", files / "0", WEIGHTWIRE_ISA="abacus")
    assert result.returncode == INVALID_ARGUMENT and "scalar" in result.stderr


def test_an_update_in_the_middle(files):
    """A journal that is there: other commands say what to do, and a damaged one is refused."""
    write_sharded(files / "base", chain(1)[0])
    (files / "base/.weightwire-journal").write_bytes(b"not a journal, but there")
    words = ["in the middle of an update", "weightwire apply --in-place"]
    refused(files, MISMATCH, words, "digest", files / "base")
    refused(files, MISMATCH, words, "diff", files / "base", files / "1")
    refused(files, MISMATCH, words, "apply", files / "base", files / "01", "-o", files / "out")
    refused(files, CORRUPT, "damaged", "apply", files / "base", "--in-place")
    refused(files, CORRUPT, "damaged", "apply", files / "base", files / "01", "--in-place")


def test_an_incomplete_journal_is_of_no_matter(files):
    write_sharded(files / "base", chain(1)[0])
    (files / "base/.weightwire-journal.tmp").write_bytes(b"WWJRNL03 cut o")
    succeed("digest", files / "base")
    assert "no update is pending" in succeed("apply", files / "base", "--in-place")
    assert not list((files / "base").glob(".weightwire*"))
    succeed("apply", files / "base", files / "01", "--in-place")


@pytest.mark.parametrize("many", [False, True], ids=["a little", "more than is kept back"])
def test_a_full_standard_output(files, many):
    names = {
        f"a tensor with a long name, number {i}": tensor for i, tensor in enumerate(list(chain(1)[0].values()) * 300)
    }
    write_by_hand(files / "many", names)
    what = files / ("many" if many else "0")
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [WEIGHTWIRE, "digest", "--tensors", what], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert result.returncode == LOCAL_IO and result.stderr == "error: cannot write to standard output\n"


def test_a_delta_is_no_checkpoint(files):
    for arguments in (("digest",), ("diff", files / "0"), ("publish", files / "run")):
        refused(files, INVALID_ARGUMENT, "01 is a delta, not a checkpoint", *arguments, files / "01")


def test_a_delta_is_not_written_over_what_it_leads_from_or_to(files):
    for name in "01":
        refused(
            files, INVALID_ARGUMENT, "one of the two", "diff", files / "0", files / "1", "-o", files / name, "--force"
        )


def test_an_interrupt_leaves_no_temporary_files(tmp_path):
    state, after = chain(2, size=20_000_000, share=0.001)
    write_by_hand(tmp_path / "old", state)
    write_by_hand(tmp_path / "new", after)
    succeed("diff", tmp_path / "old", tmp_path / "new", "-o", tmp_path / "delta", "--no-other-formats")
    process = subprocess.Popen(
        [WEIGHTWIRE, "apply", tmp_path / "old", tmp_path / "delta", "-o", tmp_path / "out"],
        # Who runs the tests in the background may have told everybody below to ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        stderr=subprocess.PIPE,
        text=True,
    )
    while process.poll() is None and not list(tmp_path.glob(".weightwire*")):
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode in (-signal.SIGINT, 0)  # 0: it was faster than the signal
    assert said.endswith("interrupted; nothing was written\n" if process.returncode != 0 else "")
    assert not list(tmp_path.glob(".weightwire*"))
    assert (tmp_path / "out").exists() == (process.returncode == 0)
