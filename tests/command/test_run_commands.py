"""The commands of a run, on a directory as the bucket: publish, follow and the others, each as a process of its own."""

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from exit_statuses import CONFLICT, CORRUPT, INVALID_ARGUMENT, LOCAL_IO, MISMATCH, NOT_FOUND, WAIT_TIMEOUT
from test_command_roundtrip import (
    REPOSITORY,
    WEIGHTWIRE,
    chain,
    read_directory,
    snapshot,
    succeed,
    succeed_json,
    weightwire,
    write_sharded,
)
from test_safetensors_interop import read_by_package, write_by_hand

DATA = REPOSITORY / "tests/data"


@pytest.fixture(autouse=True)
def state_home(tmp_path, monkeypatch):
    """Base copies and spools go here, not into the home directory."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state-home"))


@pytest.fixture
def run(tmp_path):
    """A run of four versions, steps 0, 10, 20, 30, in tmp_path/bucket; the checkpoints are tmp_path/0 … 3."""
    for number, state in enumerate(chain(4)):
        write_sharded(tmp_path / f"{number}", state)
        succeed("publish", tmp_path / "bucket", tmp_path / f"{number}", "--step", 10 * number)
    return tmp_path / "bucket"


def start(*arguments):
    """A process that goes on; its output is read line by line."""
    return subprocess.Popen(
        [WEIGHTWIRE, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_for(process, words):
    """Reads its lines up to one with these words, and gives that one."""
    for line in process.stdout:
        if words in line:
            return line
    raise AssertionError(f"it ended without saying {words}: {process.stderr.read()}")


def end(process, with_signal=signal.SIGINT):
    process.send_signal(with_signal)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def checkpoint_files(directory):
    return {name: data for name, data in snapshot(directory).items() if not name.startswith(".weightwire/")}


def same_checkpoint(directory, expected):
    """Tensors bit for bit, and what lies beside them byte for byte."""
    assert read_directory(directory) == read_directory(expected)

    def beside(path):
        return {n: d for n, d in checkpoint_files(path).items() if "safetensors" not in n}

    assert beside(directory) == beside(expected)


def refused(status, words, *arguments, untouched=None):
    """One sentence with these words, that status, and nothing else than before."""
    before = snapshot(untouched) if untouched else None
    result = weightwire(*arguments)
    assert result.returncode == status, result.stderr
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1, result.stderr
    for word in [words] if isinstance(words, str) else words:
        assert word in result.stderr
    if untouched:
        assert snapshot(untouched) == before


def versions(run):
    return succeed_json("log", run)["versions"]


def part_of(run, version):
    (part,) = (run / f"deltas/{version - 1:020}-{version:020}").iterdir()
    return part


# --- init ---


def test_init_makes_a_run_once(tmp_path):
    made = succeed_json("init", tmp_path / "bucket")
    assert made["created"] and len(made["run_id"]) == 32 and made["run"] == str(tmp_path / "bucket")
    again = succeed_json("init", tmp_path / "bucket")
    assert not again["created"] and again["run_id"] == made["run_id"]
    assert made["run_id"] in succeed("init", f"file://{tmp_path}/bucket")
    assert succeed_json("log", tmp_path / "bucket")["versions"] == []


def test_a_single_writer_is_recorded(tmp_path):
    assert succeed_json("init", tmp_path / "bucket", "--single-writer")["single_writer"]
    assert json.loads((tmp_path / "bucket/run.json").read_text())["single_writer"] is True
    write_sharded(tmp_path / "0", chain(1)[0])
    succeed("publish", tmp_path / "bucket", tmp_path / "0")
    succeed("init", tmp_path / "other")
    refused(INVALID_ARGUMENT, "several writers", "init", tmp_path / "other", "--single-writer", untouched=tmp_path)


# --- publish and log ---


def test_the_log_of_a_run(run, tmp_path):
    log = succeed_json("log", run)
    assert [v["version"] for v in log["versions"]] == [0, 1, 2, 3]
    assert [v["step"] for v in log["versions"]] == [0, 10, 20, 30]
    assert [v["anchor_bytes"] is not None for v in log["versions"]] == [True, False, False, False]
    anchor_bytes = sum(
        f.stat().st_size for f in (run / "anchors").rglob("*") if f.is_file() and f.name != "anchor.json"
    )
    assert log["versions"][0]["anchor_bytes"] == anchor_bytes and log["versions"][0]["delta_bytes"] is None
    for version in (1, 2, 3):
        assert log["versions"][version]["delta_bytes"] == part_of(run, version).stat().st_size
        digest = succeed_json("digest", tmp_path / f"{version}")["digest"]
        assert log["versions"][version]["digest"] == digest
    assert log["run"] == str(run) and len(log["run_id"]) == 32 and log["newest_version"] == 3
    for last in ("--last", "-n"):
        assert [v["version"] for v in succeed_json("log", run, last, 2)["versions"]] == [2, 3]
    refused(INVALID_ARGUMENT, "--last a number above 0", "log", run, "--last", 0)
    text = succeed("log", run)
    assert "4 versions" in text and "anchor" in text


def test_publish_says_what_it_sent(run, tmp_path):
    write_sharded(tmp_path / "4", chain(5)[4])
    out = succeed_json("publish", run, tmp_path / "4", "--step", 40)
    diff = succeed_json("diff", tmp_path / "3", tmp_path / "4", "--no-other-formats")
    assert out["stage"] == "committed" and out["version"] == 4 and out["step"] == 40
    assert (out["changed_elements"], out["elements"]) == (diff["changed_elements"], diff["elements"])
    assert (
        out["delta_bytes"] == diff["delta_bytes"]
        and out["anchor_bytes"] is None
        and out["model_bytes"] == diff["model_bytes"]
    )


def test_publishing_the_newest_again_does_nothing(run, tmp_path):
    before = snapshot(run)
    assert "already published, as version 3" in succeed("publish", run, tmp_path / "3", "--step", 30)
    assert "already published, as version 3" in succeed("publish", run, tmp_path / "3")
    assert snapshot(run) == before


def test_the_same_state_with_another_step_is_a_version_of_no_bytes(run, tmp_path):
    out = succeed_json("publish", run, tmp_path / "3", "--step", 31)
    assert (out["version"], out["delta_bytes"], out["changed_elements"]) == (4, 0, 0)
    assert versions(run)[4]["step"] == 31
    succeed("verify", run)


def everything(tmp_path):
    """The bucket and the state directories, byte for byte."""
    return snapshot(tmp_path / "bucket"), snapshot(tmp_path / "state-home")


def test_a_dry_run_says_what_publish_will_send_and_writes_nothing(run, tmp_path):
    write_sharded(tmp_path / "4", chain(5)[4])
    before = everything(tmp_path)
    # With the base copy, and without it: then the newest version is fetched.
    elsewhere = ("--state-dir", tmp_path / "elsewhere")
    planned = [succeed_json("publish", run, tmp_path / "4", "--dry-run", *where) for where in ((), elsewhere)]
    assert everything(tmp_path) == before and not (tmp_path / "elsewhere").exists()
    done = succeed_json("publish", run, tmp_path / "4")
    for plan in planned:
        assert (plan.pop("dry_run"), plan.pop("stage"), plan.pop("duration_seconds") >= 0) == (True, None, True)
        assert plan == {name: done[name] for name in plan}
    assert done["stage"] == "committed" and done["dry_run"] is False
    again = succeed_json("publish", run, tmp_path / "4", "--dry-run")
    assert (again["stage"], again["version"]) == ("already_published", 4)


def test_a_dry_run_names_the_anchors_that_publish_will_write(run, tmp_path):
    write_sharded(tmp_path / "4", chain(5)[4])
    plan = succeed_json("publish", run, tmp_path / "4", "--anchor-every", 1, "--dry-run")
    assert plan["anchor_version"] == succeed_json("publish", run, tmp_path / "4", "--anchor-every", 1)["anchor_version"]
    first = succeed_json("publish", tmp_path / "new", tmp_path / "4", "--dry-run")
    assert (first["version"], first["delta_bytes"], first["run_id"]) == (0, None, None)
    assert first["anchor_bytes"] == first["model_bytes"]
    assert not (tmp_path / "new").exists()


def test_another_model_is_refused_unless_that_is_allowed(run, tmp_path):
    write_by_hand(tmp_path / "other", {"other": ("U8", [3], b"abc")})
    before = everything(tmp_path)
    for more in ((), ("--dry-run",)):
        refused(MISMATCH, ["another model", "--allow-new-model"], "publish", run, tmp_path / "other", *more)
        assert snapshot(run) == before[0]
    assert succeed_json("publish", run, tmp_path / "other", "--allow-new-model")["version"] == 4
    succeed("verify", run)


def test_steps_may_go_back_and_default_to_the_next(run, tmp_path):
    assert succeed_json("publish", run, tmp_path / "1", "--step", 7)["version"] == 4
    assert succeed_json("publish", run, tmp_path / "2")["step"] == 8


def test_no_step_comes_after_the_last_one(run, tmp_path):
    last = (1 << 64) - 1
    limits = ("--anchor-every", last, "--anchor-percent", last)  # the largest numbers mean: never
    assert succeed_json("publish", run, tmp_path / "1", "--step", last, *limits)["anchor_version"] is None
    refused(INVALID_ARGUMENT, "give --step", "publish", run, tmp_path / "2", untouched=run)


@pytest.mark.parametrize("name", ["tiny-47", "596m-master-10", "596m-fp8-f32-10"])
def test_a_real_step(tmp_path, name):
    old, new = DATA / f"{name}.old.safetensors", DATA / f"{name}.new.safetensors"
    succeed("publish", tmp_path / "bucket", old, "--step", 1)
    out = succeed_json("publish", tmp_path / "bucket", new, "--step", 2)
    assert out["delta_bytes"] == succeed_json("diff", old, new, "--no-other-formats")["delta_bytes"]
    succeed("follow", tmp_path / "bucket", tmp_path / "mirror", "--once")
    assert read_directory(tmp_path / "mirror") == read_by_package(new)
    succeed("verify", tmp_path / "bucket")


def test_a_layout_that_changes(run, tmp_path):
    state = chain(4)[3]
    del state["a"]
    state["z"] = ("U8", [3], b"abc")
    write_sharded(tmp_path / "4", state)
    succeed("follow", run, tmp_path / "mirror", "--once")
    assert succeed_json("publish", run, tmp_path / "4", "--step", 40)["version"] == 4
    succeed("follow", run, tmp_path / "mirror", "--once")
    assert read_directory(tmp_path / "mirror") == read_directory(tmp_path / "4")
    succeed("verify", run)


def test_a_publisher_without_its_state_goes_on(run, tmp_path):
    write_sharded(tmp_path / "4", chain(5)[4])
    out = succeed_json("publish", run, tmp_path / "4", "--step", 40, "--state-dir", tmp_path / "elsewhere")
    assert (
        out["delta_bytes"] == succeed_json("diff", tmp_path / "3", tmp_path / "4", "--no-other-formats")["delta_bytes"]
    )
    # And the first one, whose base is of an older version now.
    write_sharded(tmp_path / "5", chain(6)[5])
    out = succeed_json("publish", run, tmp_path / "5", "--step", 50)
    assert (
        out["delta_bytes"] == succeed_json("diff", tmp_path / "4", tmp_path / "5", "--no-other-formats")["delta_bytes"]
    )
    succeed("verify", run)


def test_publishers_race(run, tmp_path):
    states = chain(8)
    racers = []
    for number in range(4, 8):
        write_sharded(tmp_path / f"{number}", states[number])
        racers.append(
            start("publish", run, tmp_path / f"{number}", "--step", number, "--state-dir", tmp_path / f"s{number}")
        )
    ended = [(racer.communicate(timeout=120)[1], racer.returncode) for racer in racers]
    assert all(status in (0, CONFLICT) for _, status in ended), ended
    winners = [number for number, (_, status) in zip(range(4, 8), ended, strict=True) if status == 0]
    assert winners
    assert all("another" in err for err, status in ended if status == CONFLICT)
    assert sorted(v["step"] for v in versions(run)[4:]) == winners
    succeed("verify", run)


def test_one_state_directory_has_one_publisher(run, tmp_path):
    import fcntl

    (state,) = (tmp_path / "state-home/weightwire").iterdir()
    with open(state / "lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        refused(11, "another publisher uses", "publish", run, tmp_path / "2", "--step", 9, untouched=run)


def test_anchors_by_number(tmp_path):
    for number, state in enumerate(chain(6)):
        write_by_hand(tmp_path / f"{number}", state)
        succeed("publish", tmp_path / "bucket", tmp_path / f"{number}", "--anchor-every", 2)
    assert [v["anchor_bytes"] is not None for v in versions(tmp_path / "bucket")] == [
        True,
        False,
        True,
        False,
        True,
        False,
    ]
    succeed("verify", tmp_path / "bucket")


def test_an_anchor_that_cannot_be_written_is_a_warning(run, tmp_path):
    """The version is there without it; and publish ends, although trying again would not help."""
    write_sharded(tmp_path / "4", chain(5)[4])
    with open(tmp_path / "4/too-large.json", "wb") as file:
        file.truncate((1 << 30) + 1)
    publish = [WEIGHTWIRE, "publish", run, tmp_path / "4", "--anchor-every", "1", "--json"]
    result = subprocess.run(publish, capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("\n") == 1
    assert "version 4 is published" in result.stderr and "too-large.json" in result.stderr
    said = json.loads(result.stdout)
    assert (said["stage"], said["version"], said["anchor_version"]) == ("committed", 4, None)
    assert len(versions(run)) == 5


# --- follow and checkout ---


def test_follow_brings_a_directory_to_the_newest_version(run, tmp_path):
    out = succeed("follow", run, tmp_path / "mirror", "--once")
    assert "version 3 (step 30)" in out and out.endswith("up to date, with version 3\n")
    same_checkpoint(tmp_path / "mirror", tmp_path / "3")
    write_sharded(tmp_path / "4", chain(5)[4])
    succeed("publish", run, tmp_path / "4", "--step", 40)
    assert "version 4 (step 40)" in succeed("follow", run, tmp_path / "mirror", "--once")
    same_checkpoint(tmp_path / "mirror", tmp_path / "4")
    assert succeed("follow", run, tmp_path / "mirror", "--once").count("\n") == 1
    assert succeed_json("followers", run)["followers"] == []


def test_follow_never_creates_a_run(tmp_path):
    refused(NOT_FOUND, ["no run", "--wait-for-run"], "follow", tmp_path / "bucket", tmp_path / "mirror")
    assert not (tmp_path / "bucket").exists() and not (tmp_path / "mirror").exists()


def test_a_mirror_inside_its_run_is_refused(run):
    for directory in (run, run / "mirror", run.parent):
        refused(INVALID_ARGUMENT, "a directory of its own", "follow", run, directory, "--once")


def test_follow_waits_for_the_run_if_told_to(tmp_path):
    follow = ("follow", tmp_path / "bucket", tmp_path / "mirror", "--wait-for-run", "--poll-interval", "0.05s")
    waits = start(*follow, "--until", 0)
    ended = start(*follow[:2], tmp_path / "other", *follow[3:])
    for process in (waits, ended):
        assert "no run" in process.stderr.readline()
    assert end(ended) == (0, f"{tmp_path}/other: stopped; it holds no version yet\n", "")
    assert not (tmp_path / "bucket").exists()
    write_sharded(tmp_path / "0", chain(1)[0])
    succeed("publish", tmp_path / "bucket", tmp_path / "0")
    assert waits.communicate(timeout=60)[1] == "" and waits.returncode == 0
    same_checkpoint(tmp_path / "mirror", tmp_path / "0")


def test_no_run_is_made_where_a_mirror_holds_a_version_of_one(run, tmp_path):
    succeed("follow", run, tmp_path / "mirror", "--once")
    refused(
        NOT_FOUND,
        ["no run", "holds version 3"],
        "follow",
        tmp_path / "elsewhere",
        tmp_path / "mirror",
        "--wait-for-run",
    )
    assert not (tmp_path / "elsewhere").exists()


def test_swap_keeps_whole_copies_behind_a_link(run, tmp_path):
    mirror = tmp_path / "mirror"
    show = f"readlink $WEIGHTWIRE_MIRROR >>{tmp_path / 'seen'}"
    succeed("follow", run, mirror, "--swap", "--until", 2, "--exec", show)
    first = (mirror / "current").resolve()
    same_checkpoint(first, tmp_path / "2")
    succeed("follow", run, mirror, "--swap", "--once", "--exec", show)
    same_checkpoint(mirror / "current", tmp_path / "3")
    same_checkpoint(first, tmp_path / "2")  # for whoever is still reading it
    assert (tmp_path / "seen").read_text().split()[0] == f"copies/{first.name}"
    assert len(list((mirror / "copies").iterdir())) == 2
    refused(INVALID_ARGUMENT, "--swap", "follow", run, mirror, "--once", untouched=mirror)
    refused(INVALID_ARGUMENT, "--adopt", "follow", run, mirror, "--swap", "--adopt", untouched=mirror)


def test_follow_goes_along_until_a_version(run, tmp_path):
    process = start("follow", run, tmp_path / "mirror", "--until", 6, "--json", "--poll-interval", "200ms")
    first = json.loads(process.stdout.readline())
    assert (first["event"], first["version"], first["from_version"]) == (
        "version",
        3,
        None,
    )  # an anchor and what comes after
    (lease,) = succeed_json("followers", run)["followers"]
    assert lease["is_active"]
    for number in range(4, 8):
        write_sharded(tmp_path / f"{number}", chain(number + 1)[number])
        succeed("publish", run, tmp_path / f"{number}", "--step", 10 * number)
    out, err = process.communicate(timeout=60)
    events = [json.loads(line) for line in out.splitlines()]
    assert (process.returncode, err) == (0, "")
    assert events[-1]["event"] == "end" and events[-1]["reason"] == "reached" and events[-1]["version"] == 6
    assert [e["version"] for e in events[:-1]] == sorted(e["version"] for e in events[:-1])
    same_checkpoint(tmp_path / "mirror", tmp_path / "6")
    assert events[-2]["digest"] == succeed_json("digest", tmp_path / "6")["digest"]
    common = ["event", "version", "step", "from_version", "digest", "bytes_received", "seconds"]
    assert all(list(event) == common and event["seconds"] > 0 for event in events[:-1])
    assert list(events[-1]) == ["event", "reason", "version", "versions_applied", "anchors_loaded", "bytes_received"]
    assert events[-1]["bytes_received"] == first["bytes_received"] + sum(e["bytes_received"] for e in events[:-1])


def test_a_version_that_does_not_come_in_time(run, tmp_path):
    until = ("--until", 4, "--timeout", "0")
    refused(12, ["version 4 did not", "no version yet"], "follow", run, tmp_path / "none", *until)
    nowhere = (tmp_path / "nowhere", tmp_path / "mirror", "--wait-for-run", "--until", 4, "--timeout", "10ms")
    result = weightwire("follow", *nowhere)
    assert result.returncode == WAIT_TIMEOUT and "version 4 did not" in result.stderr
    in_time = ("--until", 3, "--timeout", "10m", "--poll-interval", "10ms")
    succeed("follow", run, tmp_path / "mirror", *in_time)
    refused(12, ["version 4 did not", "holds version 3"], "follow", run, tmp_path / "mirror", *until)
    words = ["--timeout", "--once or --until"]
    refused(INVALID_ARGUMENT, words, "follow", run, tmp_path / "mirror", "--timeout", "1s")
    assert succeed_json("followers", run)["followers"] == []


def test_an_update_that_does_not_end_in_time(run, tmp_path, monkeypatch):
    mirror = tmp_path / "mirror"
    refused(WAIT_TIMEOUT, ["the update", "no version"], "follow", run, mirror, "--once", "--timeout", "0")
    succeed("follow", run, mirror, "--once", "--timeout", "10m")
    nowhere = (tmp_path / "nowhere", tmp_path / "other", "--once", "--wait-for-run", "--timeout", "10ms")
    result = weightwire("follow", *nowhere)
    assert result.returncode == WAIT_TIMEOUT and "no version yet" in result.stderr
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    unreachable = ("s3://bucket/run?endpoint=http://127.0.0.1:1", tmp_path / "other", "--once", "--timeout", "10ms")
    result = weightwire("follow", *unreachable)
    assert result.returncode == WAIT_TIMEOUT and "did not answer" in result.stderr, result.stderr


def test_options_that_contradict_each_other_are_refused(run, tmp_path):
    follow = ("follow", run, tmp_path / "mirror")
    refused(INVALID_ARGUMENT, ["--once", "--max-lag"], *follow, "--once", "--max-lag", 1, untouched=tmp_path)
    refused(INVALID_ARGUMENT, ["--until", "--pin"], *follow, "--until", 1, "--pin", 1, untouched=tmp_path)
    succeed(*follow, "--once", "--max-lag", 0)


@pytest.mark.parametrize("with_signal", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_follow_cleanly(run, tmp_path, with_signal):
    process = start("follow", run, tmp_path / "mirror", "--poll-interval", "600s", "--name", "the one")
    wait_for(process, "version 3 ")
    (lease,) = succeed_json("followers", run)["followers"]
    assert lease["name"] == "the one"
    assert "the one" in succeed("followers", run)
    status, out, err = end(process, with_signal)
    assert (status, err) == (0, "") and out.endswith("stopped, with version 3\n")
    assert succeed_json("followers", run)["followers"] == []
    same_checkpoint(tmp_path / "mirror", tmp_path / "3")


def test_a_follower_keeps_its_id(run, tmp_path):
    """It names the lease, also after another start and a load."""
    succeed("follow", run, tmp_path / "mirror", "--until", 1)
    own = (tmp_path / "mirror/.weightwire/follower.id").read_text().strip()
    process = start("follow", run, tmp_path / "mirror", "--pin", 0, "--poll-interval", "600s")
    wait_for(process, "version 0 ")
    assert [lease["follower_id"] for lease in succeed_json("followers", run)["followers"]] == [own]
    assert end(process)[0] == 0


def test_followers_are_listed_with_the_newest_version(run, tmp_path):
    process = start("follow", run, tmp_path / "mirror", "--pin", 1, "--poll-interval", "600s", "--name", "a")
    wait_for(process, "version 1 ")
    said = succeed_json("followers", run)
    assert (said["run"], said["newest_version"], said["unreadable_leases"]) == (str(run), 3, 0)
    (follower,) = said["followers"]
    assert (follower["name"], follower["newest_version"], follower["is_active"]) == ("a", 3, True)
    assert end(process)[0] == 0
    assert "no follower keeps a lease" in succeed("followers", run)


def test_standing_still_and_going_back(run, tmp_path):
    succeed("follow", run, tmp_path / "mirror", "--once")
    succeed("follow", run, tmp_path / "mirror", "--once", "--pin", 1)
    same_checkpoint(tmp_path / "mirror", tmp_path / "1")
    succeed("follow", run, tmp_path / "mirror", "--once")
    same_checkpoint(tmp_path / "mirror", tmp_path / "3")


def test_every_version_on_its_own(run, tmp_path):
    succeed("follow", run, tmp_path / "mirror", "--until", 0)
    out = succeed("follow", run, tmp_path / "mirror", "--once", "--every-version")
    assert [line.split()[1] for line in out.splitlines()[:-1]] == ["1", "2", "3"]


def test_exec_runs_after_each_update(run, tmp_path):
    said = tmp_path / "said"
    command = f'echo "$WEIGHTWIRE_VERSION $WEIGHTWIRE_STEP $WEIGHTWIRE_MIRROR" >> {said}'
    succeed("follow", run, tmp_path / "mirror", "--until", 1, "--exec", command)
    succeed("follow", run, tmp_path / "mirror", "--once", "--exec", command)
    succeed("follow", run, tmp_path / "mirror", "--once", "--exec", command)
    assert said.read_text().splitlines()[-2:] == [f"1 10 {tmp_path}/mirror", f"3 30 {tmp_path}/mirror"]
    write_sharded(tmp_path / "4", chain(5)[4])
    succeed("publish", run, tmp_path / "4")
    refused(LOCAL_IO, "ended with status 7", "follow", run, tmp_path / "mirror", "--once", "--exec", "exit 7 # version")
    same_checkpoint(tmp_path / "mirror", tmp_path / "4")


@pytest.mark.parametrize("how", [[], ["--swap"]])
def test_exec_is_run_at_the_next_start_if_it_did_not_end_well(run, tmp_path, how):
    said = tmp_path / "said"
    follow = ("follow", run, tmp_path / "mirror", "--once", *how)
    refused(LOCAL_IO, "ended with status 7", *follow, "--exec", "exit 7")
    for _ in range(2):
        succeed(*follow, "--exec", f"echo $WEIGHTWIRE_VERSION $WEIGHTWIRE_STEP >>{said}")
    assert said.read_text() == "3 30\n"
    write_sharded(tmp_path / "4", chain(5)[4])
    succeed("publish", run, tmp_path / "4", "--step", 40)
    succeed(*follow)  # nobody is told
    succeed(*follow, "--exec", f"echo $WEIGHTWIRE_VERSION $WEIGHTWIRE_STEP >>{said}")
    assert said.read_text() == "3 30\n4 40\n"


def test_a_signal_is_passed_on_to_the_command(run, tmp_path):
    command = 'sleep 1000 & trap "kill $!; echo told > $WEIGHTWIRE_MIRROR/../told; exit 1" TERM; echo began; wait'
    process = start("follow", run, tmp_path / "mirror", "--exec", command)
    wait_for(process, "began")
    assert end(process, signal.SIGTERM)[0] == 0
    assert (tmp_path / "told").exists()


def test_adopting_a_checkpoint_by_its_digest(run, tmp_path):
    shutil.copytree(tmp_path / "2", tmp_path / "mirror")
    refused(INVALID_ARGUMENT, "not empty", "follow", run, tmp_path / "mirror", "--once", untouched=tmp_path / "mirror")
    out = succeed_json_lines("follow", run, tmp_path / "mirror", "--once", "--adopt")
    assert out[0]["from_version"] == 2 and out[0]["bytes_received"] == part_of(run, 3).stat().st_size
    same_checkpoint(tmp_path / "mirror", tmp_path / "3")


def succeed_json_lines(*arguments):
    return [json.loads(line) for line in succeed(*arguments, "--json").splitlines()]


def test_checkout_of_any_version(run, tmp_path):
    for number in range(4):
        out = succeed_json("checkout", f"{run}@{number}", tmp_path / f"out{number}")
        assert (out["version"], out["step"]) == (number, 10 * number)
        same_checkpoint(tmp_path / f"out{number}", tmp_path / f"{number}")
        assert not list((tmp_path / f"out{number}").glob(".*"))
        assert out["digest"] == succeed_json("digest", tmp_path / f"out{number}")["digest"]
    succeed("checkout", f"file://{run}", tmp_path / "newest/")
    same_checkpoint(tmp_path / "newest", tmp_path / "3")
    assert not list(tmp_path.glob(".*"))
    assert succeed_json("followers", run)["followers"] == []


def test_one_process_makes_a_directory(run, tmp_path):
    import fcntl

    (tmp_path / ".out.weightwire").mkdir()
    with open(tmp_path / ".out.weightwire/lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        refused(11, "another process is making", "checkout", run, tmp_path / "out", untouched=tmp_path)
    succeed("checkout", run, tmp_path / "out")
    same_checkpoint(tmp_path / "out", tmp_path / "3")


# --- what can be wrong ---


def test_no_run(tmp_path):
    nowhere = tmp_path / "nowhere"
    for command in (["log"], ["followers"], ["verify"], ["gc"], ["anchor"]):
        refused(NOT_FOUND, ["no run", "nowhere"], *command, nowhere, untouched=tmp_path)
    refused(NOT_FOUND, "no run", "checkout", nowhere, tmp_path / "out", untouched=tmp_path)
    refused(NOT_FOUND, "no run", "follow", nowhere, tmp_path / "out", "--once", untouched=tmp_path)
    refused(NOT_FOUND, "missing", "publish", nowhere, tmp_path / "missing", untouched=tmp_path)
    assert not nowhere.exists() and not (tmp_path / "out").exists()


def test_a_run_without_versions(tmp_path):
    succeed("init", tmp_path / "bucket")
    refused(NOT_FOUND, "no version yet", "checkout", tmp_path / "bucket", tmp_path / "out")
    refused(NOT_FOUND, "no version yet", "verify", tmp_path / "bucket")
    refused(NOT_FOUND, "no version yet", "follow", tmp_path / "bucket", tmp_path / "mirror", "--once")
    assert "no version yet" in succeed("log", tmp_path / "bucket")


def test_a_version_that_is_not_there(run, tmp_path):
    refused(NOT_FOUND, "no version 9", "checkout", f"{run}@9", tmp_path / "out", untouched=tmp_path)
    refused(NOT_FOUND, "no version 9", "follow", run, tmp_path / "mirror", "--once", "--until", 9)
    same_checkpoint(tmp_path / "mirror", tmp_path / "3")


def test_existing_directories(run, tmp_path):
    refused(INVALID_ARGUMENT, "already exists", "checkout", run, tmp_path / "1", untouched=tmp_path)
    refused(INVALID_ARGUMENT, "not empty", "follow", run, tmp_path / "1", "--once", untouched=tmp_path)


def test_another_run(run, tmp_path):
    succeed("publish", tmp_path / "other", tmp_path / "0")
    succeed("follow", tmp_path / "other", tmp_path / "mirror", "--once")
    before = checkpoint_files(tmp_path / "mirror")
    refused(MISMATCH, "another run", "follow", run, tmp_path / "mirror", "--once")
    refused(MISMATCH, "another run", "anchor", run, "--from", tmp_path / "mirror", untouched=run)
    assert checkpoint_files(tmp_path / "mirror") == before


def test_a_mirror_has_one_follower(run, tmp_path):
    process = start("follow", run, tmp_path / "mirror", "--poll-interval", "600s")
    wait_for(process, "version 3 ")
    refused(11, "another follower keeps", "follow", run, tmp_path / "mirror", "--once")
    assert end(process)[0] == 0


@pytest.mark.parametrize("how", ["damaged", "missing"])
def test_a_part_that_is(run, tmp_path, how):
    """No other way: a clear error, and what is held stays. With an anchor: over the anchor."""
    succeed("follow", run, tmp_path / "mirror", "--until", 1)
    part = part_of(run, 2)
    good = part.read_bytes()
    if how == "missing":
        part.unlink()
    else:
        part.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    status, why = (NOT_FOUND, "there is no object") if how == "missing" else (CORRUPT, "is damaged")
    refused(status, ["no way to version 3", part.name, why], "follow", run, tmp_path / "mirror", "--once")
    same_checkpoint(tmp_path / "mirror", tmp_path / "1")
    refused(status, ["no way to version 3", part.name, why], "checkout", run, tmp_path / "out")
    refused(CORRUPT, "is damaged", "verify", run)
    succeed("anchor", run, "--from", tmp_path / "3")
    end_event = succeed_json_lines("follow", run, tmp_path / "mirror", "--once")[-1]
    assert (end_event["reason"], end_event["version"], end_event["anchors_loaded"]) == ("up_to_date", 3, 1)
    same_checkpoint(tmp_path / "mirror", tmp_path / "3")


def test_a_damaged_mirror_is_loaded_anew(run, tmp_path):
    succeed("follow", run, tmp_path / "mirror", "--once")
    (tmp_path / "mirror/.weightwire/state.json").write_text("nonsense")
    result = weightwire("follow", run, tmp_path / "mirror", "--once")
    assert result.returncode == 0 and "loaded again" in result.stderr
    same_checkpoint(tmp_path / "mirror", tmp_path / "3")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_bucket_that_may_only_be_read(run, tmp_path):
    for path in [*run.rglob("*"), run]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        succeed("follow", run, tmp_path / "mirror", "--once")
        same_checkpoint(tmp_path / "mirror", tmp_path / "3")
        assert weightwire("publish", run, tmp_path / "2", "--step", 9).returncode != 0
    finally:
        for path in [run, *run.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)


def test_wrong_arguments(run, tmp_path):
    wrong = [
        ["follow", run],
        ["follow", run, tmp_path / "m", "--until", 1, "--pin", 1],
        ["follow", run, tmp_path / "m", "--until", "soon"],
        ["follow", run, tmp_path / "m", "--poll-interval", "5x"],
        ["follow", run, tmp_path / "m", "--poll-interval", "0s"],
        ["follow", run, tmp_path / "m", "--poll-interval", "0"],
        ["follow", run, tmp_path / "m", "--poll-interval", "0.1ms"],
        ["gc", run, "--min-age", "old"],
        ["gc", run, "--keep-anchors", 1],
        ["gc", run, "--keep-anchors", "-1"],
        ["gc", run, "--keep-anchors=-1"],
        ["gc", run, "--keep-versions", "-1"],
        ["publish", run, tmp_path / "2", "--step", "-1"],
        ["publish", run, tmp_path / "2", "--step", 1 << 64],
        ["publish", run, tmp_path / "2", "--anchor-every", "-1"],
        ["publish", run, tmp_path / "2", "--anchor-percent", "-1"],
        ["publish", run, tmp_path / "2", "--threads", "-1"],
        ["follow", run, tmp_path / "m", "--until", "-1"],
        ["follow", run, tmp_path / "m", "--pin", "-1"],
        ["log", run, "--last", "-1"],
        ["verify", run, "--since", "-1"],
        ["publish", run],
        ["checkout", run],
        ["checkout", f"{run}@99999999999999999999", tmp_path / "m"],
        ["log", "ftp://somewhere"],
    ]
    for arguments in wrong:
        refused(INVALID_ARGUMENT, "", *arguments, untouched=tmp_path)


def test_a_poll_interval_of_zero_is_refused_in_one_sentence(run, tmp_path):
    words = ["--poll-interval", "it cannot be zero; write for example 500ms or 2s"]
    refused(INVALID_ARGUMENT, words, "follow", run, tmp_path / "m", "--poll-interval", "0s", untouched=tmp_path)


# --- keeping house ---


def long_run(tmp_path, count):
    for number, state in enumerate(chain(count)):
        write_sharded(tmp_path / f"{number}", state)
        succeed("publish", tmp_path / "bucket", tmp_path / f"{number}", "--anchor-every", 2, "--step", number)
    return tmp_path / "bucket"


def test_gc_removes_what_nobody_needs(tmp_path):
    run = long_run(tmp_path, 9)
    nothing = succeed_json("gc", run)  # everything is young
    assert nothing["removed"]["objects"] == 0 and nothing["kept_by_min_age"]["objects"] > 0
    assert "kept by --min-age" in succeed("gc", run, "--dry-run")
    dry = succeed_json("gc", run, "--min-age", "0", "--keep-anchors", 2, "--dry-run")
    assert dry["deletable"]["objects"] > 0 and dry["removed"]["objects"] == 0
    assert "deletable: " in succeed("gc", run, "--min-age", "0", "--keep-anchors", 2, "--dry-run")
    done = succeed_json("gc", run, "--min-age", "0", "--grace", "0", "--keep-anchors", 2)
    assert done["removed"] == dry["deletable"]
    assert [v["anchor_bytes"] is not None for v in versions(run)] == [False] * 6 + [True, False, True]
    report = succeed_json("verify", run)
    assert report["damage"] == [] and report["removed_versions"] > 0
    succeed("follow", run, tmp_path / "mirror", "--once")
    same_checkpoint(tmp_path / "mirror", tmp_path / "8")
    assert [v["can_check_out"] for v in versions(run)] == [False] * 6 + [True] * 3
    assert succeed("log", run).count("  removed\n") == 6
    words = ["version 3 of", "cannot be fetched any more", "can be fetched is version 6"]
    refused(NOT_FOUND, words, "checkout", f"{run}@3", tmp_path / "out")
    assert not list(tmp_path.glob(".*"))


def test_gc_says_why_it_deletes_nothing(tmp_path):
    run = long_run(tmp_path, 3)
    for anchor in run.glob("anchors/*/*/anchor.json"):
        anchor.unlink()
    assert "`weightwire anchor`" in succeed("gc", run, "--min-age", "0")
    assert "no whole anchor leads to version 2" in succeed_json("gc", run, "--min-age", "0")["blocked_because"]


def test_gc_that_is_interrupted_takes_its_mark_back_and_says_so(tmp_path):
    run = long_run(tmp_path, 7)
    before = snapshot(run)
    process = start("gc", run, "--min-age", "0", "--grace", "1h", "--keep-anchors", 2)
    while not list(run.glob("gc/*")):
        assert process.poll() is None, process.stderr.read()
    announced = process.stderr.readline()
    assert "can be deleted" in announced and "(--grace)" in announced
    status, _, err = end(process, signal.SIGTERM)
    assert status == -signal.SIGTERM and err.endswith("interrupted; nothing was deleted\n")
    assert snapshot(run) == before


def test_gc_leaves_what_a_lease_needs(tmp_path):
    run = long_run(tmp_path, 9)
    process = start("follow", run, tmp_path / "mirror", "--pin", 3, "--poll-interval", "600s")
    wait_for(process, "version 3 ")
    assert succeed_json("followers", run)["followers"][0]["is_active"]
    assert "  1 active\n" in succeed("gc", run, "--min-age", "0", "--keep-anchors", 2, "--dry-run")
    kept = succeed_json("gc", run, "--min-age", "0", "--grace", "0", "--keep-anchors", 2)
    assert kept["kept_by_leases"]["objects"] > 0 and kept["active_leases"] == 1
    assert end(process)[0] == 0
    succeed("follow", run, tmp_path / "mirror", "--once")
    same_checkpoint(tmp_path / "mirror", tmp_path / "8")
    assert succeed_json("gc", run, "--min-age", "0", "--grace", "0", "--keep-anchors", 2)["removed"]["objects"] > 0
    succeed("verify", run)


def test_an_anchor_is_written_from_whatever_can_be_published(tmp_path):
    old, new = DATA / "tiny-47.old.safetensors", DATA / "tiny-47.new.safetensors"
    run = tmp_path / "bucket"
    succeed("publish", run, old)
    succeed("publish", run, new)
    before = snapshot(run)
    plan = succeed_json("anchor", run, "--from", new, "--dry-run")
    assert (plan["version"], plan["dry_run"]) == (1, True)
    assert succeed_json("anchor", run, "--dry-run")["anchor_bytes"] == plan["anchor_bytes"]
    refused(MISMATCH, "holds version 1, not version 0", "anchor", f"{run}@0", "--from", new, "--dry-run")
    assert snapshot(run) == before
    out = succeed_json("anchor", run, "--from", new)
    assert (out["version"], out["run"], out["dry_run"]) == (1, str(run), False)
    assert out["anchor_bytes"] > plan["anchor_bytes"]  # with the file's header
    succeed("verify", run)


def test_anchors_written_by_others(run, tmp_path):
    succeed("follow", run, tmp_path / "mirror", "--once")
    out = succeed_json("anchor", run, "--from", tmp_path / "mirror")
    assert out["version"] == 3
    assert succeed_json("anchor", f"{run}@1")["version"] == 1
    assert [v["anchor_bytes"] is not None for v in versions(run)] == [True, True, False, True]
    report = succeed_json("verify", run)
    assert report["anchors"] == 3 and report["damage"] == []
    # The anchor is a plain directory: configuration and tokenizer are in it.
    (folder,) = (run / f"anchors/{3:020}").iterdir()
    assert (folder / "config.json").read_bytes() == (tmp_path / "3/config.json").read_bytes()
    assert read_directory(folder) == read_directory(tmp_path / "3")
    refused(MISMATCH, "holds version 3, not version 2", "anchor", f"{run}@2", "--from", tmp_path / "mirror")
    write_sharded(tmp_path / "4", chain(5)[4])
    refused(MISMATCH, "no version of the run", "anchor", run, "--from", tmp_path / "4", untouched=run)


def test_code_is_carried_if_both_sides_ask(tmp_path):
    for number, state in enumerate(chain(2)):
        write_sharded(tmp_path / f"{number}", state)
        (tmp_path / f"{number}/modeling.py").write_text("print('hello')\n")
    publish = ("publish", tmp_path / "bucket", tmp_path / "0", "--include-code")
    result = weightwire(*publish)
    assert (result.returncode, result.stderr) == (0, "")
    assert "modeling.py is left out" in weightwire("publish", tmp_path / "bucket", tmp_path / "1").stderr
    succeed("checkout", tmp_path / "bucket", tmp_path / "without")
    assert not (tmp_path / "without/modeling.py").exists()
    succeed("checkout", tmp_path / "bucket", tmp_path / "with", "--include-code")
    same_checkpoint(tmp_path / "with", tmp_path / "1")
    # And on, by whoever writes an anchor of a later version, from a copy or from the bucket.
    succeed("anchor", tmp_path / "bucket", "--include-code", "--from", tmp_path / "with")
    succeed("anchor", tmp_path / "bucket", "--include-code")
    succeed("anchor", tmp_path / "bucket")
    folders = list((tmp_path / f"bucket/anchors/{1:020}").iterdir())
    assert sorted((folder / "modeling.py").exists() for folder in folders) == [False, True, True]


def test_verify_finds_damage(run):
    report = succeed_json("verify", run)
    assert report["records"] == 4 and report["verified_versions"] == 4 and report["damage"] == []
    part = part_of(run, 2)
    good = part.read_bytes()
    part.write_bytes(good[:100] + bytes([good[100] ^ 1]) + good[101:])
    result = weightwire("verify", run, "--json")
    assert result.returncode == CORRUPT
    report = json.loads(result.stdout)
    assert part.name in report["damage"][0]
    assert report["removed_versions"] == 0  # it is there


def test_verify_looks_at_everything_else_if_a_record_is_damaged(run):
    for version in range(4):
        (record,) = run.glob(f"versions/{version:020}.json")
        good = record.read_bytes()
        record.write_bytes(good[:-1])
        result = weightwire("verify", run, "--json")
        assert result.returncode == CORRUPT
        report = json.loads(result.stdout)
        assert report["newest_version"] == 3 and report["records"] == 3
        assert any(record.name in sentence for sentence in report["damage"])
        record.write_bytes(good)


def test_watching_the_log(run, tmp_path):
    process = start("log", run, "--watch", "--json", "--last", 2)
    seen = [json.loads(process.stdout.readline()) for _ in range(2)]
    write_sharded(tmp_path / "4", chain(5)[4])
    succeed("publish", run, tmp_path / "4", "--step", 40)
    seen.append(json.loads(process.stdout.readline()))
    assert end(process)[0] == 0
    assert [line.pop("event") for line in seen] == ["version"] * 3
    assert [line["version"] for line in seen] == [2, 3, 4] and seen == versions(run)[2:]


def test_exec_runs_once_for_an_anchor_and_the_deltas_after_it(run, tmp_path):
    succeed("follow", run, tmp_path / "mirror", "--once", "--exec", f"echo $WEIGHTWIRE_VERSION >>{tmp_path / 'seen'}")
    assert (tmp_path / "seen").read_text() == "3\n"


# --- processes that are killed ---

DYING = Path(os.environ.get("WW_TEST_TOOLS", REPOSITORY / "build/tests")) / "weightwire_crashing"


def die_at(effect, *arguments, variable="DIE_BEFORE_EFFECT"):
    """Runs the command in a world where the process is killed before its effect of that number; true if it was."""
    result = subprocess.run(
        [DYING, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, variable: str(effect)},
    )
    assert result.returncode in (0, -signal.SIGKILL), result.stderr
    return result.returncode != 0


def each_death(template, work, *arguments):
    """Kills the command before each of its effects, each time in a fresh copy of the folder."""
    effect = 1
    while True:
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(template, work, symlinks=True)
        killed = die_at(effect, *arguments)
        yield effect
        if not killed:
            assert effect > 10
            return
        effect += 1


@pytest.mark.parametrize("version", [0, 2])
def test_a_publisher_killed_anywhere_goes_on(tmp_path, version):
    for number, state in enumerate(chain(4, size=1_000)):
        write_sharded(tmp_path / f"{number}", state)
    template, work = tmp_path / "template", tmp_path / "work"
    template.mkdir()
    for number in range(version):
        succeed("publish", template / "bucket", tmp_path / f"{number}", "--state-dir", template / "state")
    publish = ("publish", work / "bucket", tmp_path / f"{version}", "--step", 100, "--state-dir", work / "state")
    for effect in each_death(template, work, *publish):
        succeed(*publish)
        log = versions(work / "bucket")
        assert len(log) == version + 1, effect
        assert log[version]["digest"] == succeed_json("digest", tmp_path / f"{version}")["digest"]
        assert succeed_json("verify", work / "bucket")["damage"] == []
    out = succeed_json("publish", work / "bucket", tmp_path / f"{version + 1}", "--state-dir", work / "state")
    assert out["version"] == version + 1


def test_a_follower_that_swaps_leaves_the_link_at_a_whole_version_wherever_it_is_killed(tmp_path):
    template, work = tmp_path / "template", tmp_path / "work"
    template.mkdir()
    for number, state in enumerate(chain(3, size=1_000)):
        write_sharded(tmp_path / f"{number}", state)
        succeed("publish", template / "bucket", tmp_path / f"{number}", "--state-dir", tmp_path / "state")
    succeed("follow", template / "bucket", template / "mirror", "--swap", "--until", 1)
    follow = ("follow", work / "bucket", work / "mirror", "--swap", "--once")
    old, new = (read_directory(tmp_path / f"{number}") for number in (1, 2))
    seen = []
    for _ in each_death(template, work, *follow):
        seen.append(read_directory(work / "mirror/current"))
        assert seen[-1] in (old, new)
        succeed(*follow)
        same_checkpoint(work / "mirror/current", tmp_path / "2")
    assert seen[0] == old and seen[-1] == new


def test_a_checkout_killed_anywhere_can_be_repeated(tmp_path):
    template, work = tmp_path / "template", tmp_path / "work"
    template.mkdir()
    for number, state in enumerate(chain(2, size=1_000)):
        write_sharded(tmp_path / f"{number}", state)
        succeed("publish", template / "bucket", tmp_path / f"{number}", "--state-dir", tmp_path / "state")
    checkout = ("checkout", work / "bucket", work / "out")
    for _ in each_death(template, work, *checkout):
        if not (work / "out").exists():
            succeed(*checkout)
            assert not list(work.glob(".*"))
        same_checkpoint(work / "out", tmp_path / "1")


@pytest.mark.parametrize("held", [None, 1])
def test_a_follower_killed_anywhere_goes_on(tmp_path, held):
    template, work = tmp_path / "template", tmp_path / "work"
    template.mkdir()
    for number, state in enumerate(chain(4, size=1_000)):
        write_sharded(tmp_path / f"{number}", state)
        succeed("publish", template / "bucket", tmp_path / f"{number}", "--state-dir", tmp_path / "state")
    if held is not None:
        succeed("follow", template / "bucket", template / "mirror", "--until", held)
    follow = ("follow", work / "bucket", work / "mirror", "--once")
    for _ in each_death(template, work, *follow):
        succeed(*follow)
        same_checkpoint(work / "mirror", tmp_path / "3")
        assert succeed_json("digest", work / "mirror")["digest"] == succeed_json("digest", tmp_path / "3")["digest"]
