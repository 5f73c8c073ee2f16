"""What programs beside the follower learn of a mirror from the core: the version that it holds, and how far behind."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
import weightwire as ww
from weightwire import _core


@pytest.fixture
def mirror(tmp_path):
    with ww.Publisher(tmp_path / "bucket", {"w": np.arange(8, dtype=np.float32)}) as publisher:
        publisher.publish(step=0)
    directory = tmp_path / "mirror"
    with ww.Follower(tmp_path / "bucket", directory) as follower:
        follower.poll().apply()
        digest = follower.status.digest
    return directory, digest


def test_an_intact_mirror_names_its_version_and_digest(mirror):
    directory, digest = mirror
    assert _core.read_held(os.fspath(directory))[:2] == (0, digest)


@pytest.mark.parametrize("interruption", ["update", "reboot"])
def test_a_mirror_that_a_follower_must_recover_first_holds_nothing_for_readers(mirror, interruption):
    directory, _ = mirror
    path = directory / ".weightwire" / "state.json"
    state = json.loads(path.read_text())
    if interruption == "update":
        held = ("run_id", "version", "step", "record_hash", "layout_hash", "digest", "total_delta_bytes")
        state |= {"writing": {key: state[key] for key in held}, "by": "journal"}
    else:
        state["unsynced"] = "another boot"
    path.write_text(json.dumps(state))
    assert _core.read_held(os.fspath(directory)) is None


def test_a_directory_that_is_not_a_mirror_is_not_found(tmp_path):
    with pytest.raises(ww.NotFoundError):
        _core.read_held(os.fspath(tmp_path))


def test_the_lag_counts_newer_versions_since_the_oldest_was_seen():
    lag = _core.VersionLag()
    lag.add_seen(None)
    assert (lag.newest, lag.versions, lag.seconds) == (None, 0, 0.0)
    lag.set_held(1)
    lag.add_seen(3)
    assert (lag.newest, lag.versions) == (3, 2)
    assert lag.seconds > 0.0
    lag.set_held(3)
    assert (lag.versions, lag.seconds) == (0, 0.0)
