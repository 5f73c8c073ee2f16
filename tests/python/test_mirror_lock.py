"""`mirror_lock`: reading a mirror while a follower of another program keeps it."""

from __future__ import annotations

import fcntl
import json
import subprocess

import numpy as np
import pytest
import weightwire as ww
from conftest import publish
from safetensors.numpy import load_file

ARRAYS = [{"w": np.full(8, number, np.float32)} for number in range(3)]


@pytest.fixture
def mirror(bucket, tmp_path):
    publish(bucket, ARRAYS[0])
    directory = tmp_path / "mirror"
    with ww.Follower(bucket, directory) as follower:
        follower.wait(timeout=30).apply()
    return directory


def test_the_lock_says_what_the_mirror_holds(mirror, bucket):
    with ww.mirror_lock(mirror) as held:
        newest = ww.Run(bucket).newest()
        assert (held.version, held.step, held.digest) == (0, 0, newest.digest)
        assert held.path == mirror
        assert (load_file(held.path / "model.safetensors")["w"] == 0).all()


def test_a_follower_waits_for_the_end_of_the_block(mirror, bucket):
    publish(bucket, ARRAYS[1])
    with ww.Follower(bucket, mirror) as follower:
        update = follower.wait(timeout=30)
        with ww.mirror_lock(str(mirror)) as held, pytest.raises(ww.UnavailableError):
            update.apply()
        assert held.version == 0
        update.apply()
        with ww.mirror_lock(mirror) as held:
            assert held.version == 1


def test_several_readers_read_at_once(mirror):
    with ww.mirror_lock(mirror), ww.mirror_lock(mirror, timeout=0) as held:
        assert held.version == 0


def test_a_mirror_that_is_being_written_is_waited_for(mirror):
    with (mirror / ".weightwire/content.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for timeout in (0, 0.05):
            with pytest.raises(ww.WaitTimeoutError, match="did not finish"), ww.mirror_lock(mirror, timeout=timeout):
                pass
    with ww.mirror_lock(mirror, timeout=0):
        pass


def test_the_lock_ends_with_the_block_also_after_an_error(mirror):
    with pytest.raises(ZeroDivisionError), ww.mirror_lock(mirror):
        raise ZeroDivisionError
    with (mirror / ".weightwire/content.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_change_in_spite_of_the_lock_is_an_error(mirror):
    path = mirror / ".weightwire/state.json"
    with pytest.raises(ww.UnavailableError, match="changed while it was read"), ww.mirror_lock(mirror):
        path.write_text(path.read_text().replace('"step":"0"', '"step":"5"'))


def test_what_is_no_mirror_is_not_found(tmp_path):
    for directory in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ww.NotFoundError, match="not a mirror"), ww.mirror_lock(directory):
            pass


def test_a_mirror_that_holds_no_version_is_refused(bucket, tmp_path, weightwire_command):
    subprocess.run([weightwire_command, "init", bucket], check=True, capture_output=True)
    with (
        ww.Follower(bucket, tmp_path / "mirror"),
        pytest.raises(ww.UnavailableError, match="no version yet"),
        ww.mirror_lock(tmp_path / "mirror"),
    ):
        pass


def test_an_interrupted_update_is_refused(mirror):
    path = mirror / ".weightwire/state.json"
    state = json.loads(path.read_text())
    held = ("run_id", "version", "step", "record_hash", "layout_hash", "digest", "total_delta_bytes")
    path.write_text(json.dumps(state | {"writing": {key: state[key] for key in held}, "by": "journal"}))
    with pytest.raises(ww.UnavailableError, match="cut off"), ww.mirror_lock(mirror):
        pass


def test_of_a_mirror_with_copies_the_current_one_is_locked(bucket, tmp_path, weightwire_command):
    mirror = tmp_path / "mirror"
    follow = [weightwire_command, "follow", bucket, mirror, "--swap", "--once"]
    publish(bucket, ARRAYS[0])
    subprocess.run(follow, check=True, capture_output=True)
    with ww.mirror_lock(mirror) as held:
        assert held.version == 0 and held.path == mirror / "copies/1"
        for number in (1, 2):  # two updates, after which a copy that nobody reads is removed
            publish(bucket, ARRAYS[number])
            subprocess.run(follow, check=True, capture_output=True)
        assert (load_file(held.path / "model.safetensors")["w"] == 0).all()
    with ww.mirror_lock(mirror) as held:
        assert held.version == 2
        assert (load_file(held.path / "model.safetensors")["w"] == 2).all()
