"""The command on a bucket of a real service, the Ceph RGW that tests/store/with_rgw has started: what every command
does there once, and publishers and followers that are killed at every point."""

import json
import os
import re
import shutil

import pytest
from s3_admin import administer
from test_command_roundtrip import chain, read_directory, succeed, succeed_json, weightwire, write_sharded
from test_run_commands import die_at, same_checkpoint

ENDPOINT = os.environ["WW_TEST_S3_ENDPOINT"]
ACCESS_KEY = os.environ["WW_TEST_S3_ACCESS_KEY"]
SECRET_KEY = os.environ["WW_TEST_S3_SECRET_KEY"]


@pytest.fixture(autouse=True)
def settings(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state-home"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", ENDPOINT)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)


@pytest.fixture
def bucket(tmp_path):
    """A bucket of its own for each test."""
    name = re.sub("[^a-z0-9]+", "-", tmp_path.name.lower()).strip("-")[:60].strip("-")
    administer("PUT", name)
    return name


@pytest.fixture
def checkpoints(tmp_path):
    """Four small states in a row, 0 … 3."""
    for number, state in enumerate(chain(4, size=1_000)):
        write_sharded(tmp_path / f"{number}", state)
    return [tmp_path / f"{number}" for number in range(4)]


def digest(checkpoint):
    return succeed_json("digest", checkpoint)["digest"]


def test_every_command(bucket, checkpoints, tmp_path):
    run = f"s3://{bucket}/runs/one"
    assert succeed_json("init", run)["created"]
    assert not succeed_json("init", run)["created"]
    for number, checkpoint in enumerate(checkpoints):
        assert succeed_json("publish", run, checkpoint, "--step", number)["version"] == number
    assert "already published" in succeed("publish", run, checkpoints[3], "--step", 3)
    log = succeed_json("log", run)["versions"]
    assert [v["digest"] for v in log] == [digest(checkpoint) for checkpoint in checkpoints]
    succeed("follow", run, tmp_path / "mirror", "--until", 1)
    same_checkpoint(tmp_path / "mirror", checkpoints[1])
    succeed("follow", run, tmp_path / "mirror", "--once")
    same_checkpoint(tmp_path / "mirror", checkpoints[3])
    succeed("checkout", f"{run}@2", tmp_path / "out")
    same_checkpoint(tmp_path / "out", checkpoints[2])
    assert succeed_json("anchor", run, "--from", tmp_path / "mirror")["version"] == 3
    report = succeed_json("verify", run)
    assert (report["records"], report["anchors"], report["damage"]) == (4, 2, [])
    dry = succeed_json("gc", run, "--min-age", "0", "--keep-anchors", 2, "--dry-run")
    assert dry["removed"]["objects"] == 0
    assert succeed_json("followers", run)["followers"] == []


def test_gc_on_a_service(bucket, tmp_path):
    run = f"s3://{bucket}/runs/one"
    for number, state in enumerate(chain(7, size=1_000)):
        write_sharded(tmp_path / f"{number}", state)
        succeed("publish", run, tmp_path / f"{number}", "--anchor-every", 2)
    # The service tells its time in whole seconds, so what is younger than one may still count as too young.
    gc = ("gc", run, "--min-age", "0", "--grace", "0", "--keep-anchors", 2)
    assert any(succeed_json(*gc)["removed"]["objects"] > 0 for _ in range(1000))
    assert succeed_json("verify", run)["damage"] == []
    succeed("follow", run, tmp_path / "mirror", "--once")
    same_checkpoint(tmp_path / "mirror", tmp_path / "6")


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("point", ["DIE_BEFORE_REQUEST", "DIE_AFTER_REQUEST"])
def test_a_publisher_killed_at_any_request_goes_on(bucket, checkpoints, tmp_path, version, point):
    """What it does to its disk between two requests is tried on a directory (test_run_commands.py)."""
    killed, number = True, 0
    while killed:
        number += 1
        run, state = f"s3://{bucket}/runs/{number}", tmp_path / f"state{number}"
        for before in range(version):
            succeed("publish", run, checkpoints[before], "--state-dir", state)
        publish = ("publish", run, checkpoints[version], "--step", 100, "--state-dir", state)
        killed = die_at(number, *publish, variable=point)
        succeed(*publish)
        log = succeed_json("log", run)["versions"]
        assert len(log) == version + 1, number
        assert log[version]["digest"] == digest(checkpoints[version])
        assert succeed_json("verify", run)["damage"] == []
    assert number > 3  # a lease or probe, a part, a record
    out = succeed_json("publish", run, checkpoints[version + 1], "--state-dir", state)
    assert out["version"] == version + 1


@pytest.mark.parametrize("held", [None, 1])
def test_a_follower_killed_anywhere_goes_on(bucket, checkpoints, tmp_path, held):
    run = f"s3://{bucket}/runs/one"
    for checkpoint in checkpoints:
        succeed("publish", run, checkpoint)
    template, mirror = tmp_path / "template", tmp_path / "mirror"
    if held is not None:
        succeed("follow", run, template, "--until", held)
    expected = read_directory(checkpoints[3])
    # The first load has many points, which are all tried on a directory; here a share of them.
    killed, number, stride = True, 0, 1 if held is not None else 5
    while killed:
        number += stride
        shutil.rmtree(mirror, ignore_errors=True)
        if held is not None:
            shutil.copytree(template, mirror)
        killed = die_at(number, "follow", run, mirror, "--once")
        succeed("follow", run, mirror, "--once")
        assert read_directory(mirror) == expected, number
    assert number > 10
    same_checkpoint(mirror, checkpoints[3])


def test_a_bucket_that_anybody_can_read_is_warned_of(bucket):
    assert not succeed_json("init", f"s3://{bucket}/private")["public"]
    policy = {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Principal": {"AWS": ["*"]},
                "Action": ["s3:GetObject"],
                "Resource": [f"arn:aws:s3:::{bucket}/public/*"],
            }
        ],
    }
    administer("PUT", bucket, "policy=", json.dumps(policy).encode())
    result = weightwire("init", f"s3://{bucket}/public/one")
    assert result.returncode == 0 and result.stderr.count("\n") == 1
    assert "anybody can read" in result.stderr and f"s3://{bucket}/public/one" in result.stderr
    assert not succeed_json("init", f"s3://{bucket}/private/other")["public"]


def test_wrong_keys_are_refused_in_one_sentence(bucket):
    result = weightwire("init", f"s3://{bucket}/runs/one", AWS_SECRET_ACCESS_KEY="not/the+secret")
    assert result.returncode != 0 and result.stderr.count("\n") == 1
    assert "not/the+secret" not in result.stderr and "refuse" in result.stderr.lower(), result.stderr
