"""`weightwire bench wire`: what it counts must hold on any machine; what it times is only looked at."""

import json
import os
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
WEIGHTWIRE = os.environ.get("WEIGHTWIRE", str(REPOSITORY / "build/weightwire"))


@pytest.fixture(scope="module")
def figures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    done = subprocess.run(
        [WEIGHTWIRE, "bench", "wire", "--dir", folder, "--megabytes", "8", "--late", "32", "--repeat", "3", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert list(folder.iterdir()) == []  # it cleans up
    return json.loads(done.stdout)


def test_a_version_costs_few_bytes_beyond_its_delta(figures):
    assert 0 < figures["bytes_beyond_delta"] <= 4096 + 200


def test_a_version_costs_few_requests(figures):
    assert 1 <= figures["publisher_requests"] <= 3
    assert 1 <= figures["follower_requests"] <= 3


def test_late_joiners_take_the_cheapest_way(figures):
    for who in ("late_behind", "late_nothing"):
        assert 0 < figures[f"{who}_fetched_bytes"] <= figures[f"{who}_cheapest_bytes"]
    assert not figures["late_behind_from_anchor"]
    assert figures["late_nothing_from_anchor"]


def test_everything_is_timed(figures):
    for what in ("encode", "publish", "read", "write_journal", "mirror", "mirror_settle"):
        assert 0 < figures[f"{what}_s"] <= figures[f"{what}_median_s"]
    assert 0.005 < figures["changed"] / figures["elements"] < 0.02
    assert figures["upload_over_curl"] is None  # no store was given


def test_only_s3_is_measured_against_curl(tmp_path):
    done = subprocess.run(
        [WEIGHTWIRE, "bench", "wire", "--dir", tmp_path, "--store", tmp_path / "run"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "s3://" in done.stderr
