"""The Python package reads the run in tests/data/run-1, which version 1 of the format wrote (tools/make_kept_run.py).

These tests must pass in every later version."""

import importlib
import json
import shutil
from pathlib import Path

import pytest
import weightwire as ww
from weightwire import _core

REPOSITORY = Path(__file__).resolve().parents[2]
KEPT = REPOSITORY / "tests/data/run-1"
DIGESTS = [version["digest"] for version in json.loads((KEPT / "versions.json").read_text())]
NEWEST = 7


@pytest.fixture
def kept(tmp_path):
    """A copy, because followers write to it."""
    shutil.copytree(KEPT, tmp_path / "kept")
    return tmp_path / "kept"


@pytest.fixture
def reference(monkeypatch):
    monkeypatch.syspath_prepend(REPOSITORY / "reference")
    return importlib.import_module("weightwire_run_reference")


@pytest.mark.parametrize("version", range(3, NEWEST + 1))
def test_load_gives_the_bits_of_a_version(kept, reference, version):
    expected = reference.Run(kept / "run").state(version)
    loaded = ww.load(kept / "run", version)
    assert set(loaded) - set(expected) <= {"lm_head.weight"}
    for name, (_, shape, data) in expected.items():
        assert loaded[name].shape == shape
        assert loaded[name].tobytes() == data


def test_a_follower_goes_on_with_the_kept_mirror(kept):
    held = _core.read_held(str(kept / "mirror"))
    assert held is None or held[:2] == (5, DIGESTS[5])
    with ww.Follower(kept / "run", kept / "mirror") as follower:
        assert follower.version == 5
        follower.poll().apply()
        assert follower.version == NEWEST
    assert _core.read_held(str(kept / "mirror"))[:2] == (NEWEST, DIGESTS[NEWEST])


def test_an_unknown_feature_is_refused_by_its_name(kept):
    run = kept / "run/run.json"
    run.write_text(json.dumps(json.loads(run.read_text()) | {"read_features": ["teleport"]}))
    with pytest.raises(ww.UnsupportedError, match=r"teleport.*update weightwire"):
        ww.load(kept / "run")
