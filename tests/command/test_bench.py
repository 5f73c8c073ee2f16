"""`weightwire-bench`: its counts must hold on any machine; its times must only be positive."""

import json
import subprocess

import pytest
from exit_statuses import INVALID_ARGUMENT
from test_command_roundtrip import WEIGHTWIRE_BENCH, chain, succeed, succeed_json, write_by_hand


@pytest.fixture(scope="module")
def figures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    done = subprocess.run(
        [WEIGHTWIRE_BENCH, "wire", "--dir", folder, "--megabytes", "8", "--late", "32", "--repeat", "3", "--json"],
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
    for what in ("encode", "publish", "read", "write_journal", "mirror", "mirror_sync"):
        assert 0 < figures[f"{what}_s"] <= figures[f"{what}_median_s"]
    assert 0.005 < figures["changed"] / figures["elements"] < 0.02
    assert figures["upload_over_curl"] is None  # no store was given


def test_only_s3_is_measured_against_curl(tmp_path):
    done = subprocess.run(
        [WEIGHTWIRE_BENCH, "wire", "--dir", tmp_path, "--store", tmp_path / "run"], capture_output=True, text=True
    )
    assert done.returncode == INVALID_ARGUMENT
    assert "s3://" in done.stderr


def codec_json(*arguments, **environment):
    return succeed_json("codec", *arguments, program=WEIGHTWIRE_BENCH, **environment)


def test_codec(tmp_path):
    first, second = chain(2)
    write_by_hand(tmp_path / "old", first)
    write_by_hand(tmp_path / "new", second)
    report = codec_json(tmp_path / "old", tmp_path / "new", "--threads", 2)
    times = ("read2", "encode", "read1", "apply", "write", "apply_gaps", "apply_cold", "digest")
    for name in (*times, "xor_zstd_encode", "xor_zstd_apply"):
        assert report[f"{name}_s"] > 0
    assert report["encode_over_read2"] == pytest.approx(report["encode_s"] / report["read2_s"])
    assert report["apply_over_read1"] == pytest.approx(report["apply_s"] / report["read1_s"])
    assert report["encode_vs_xor"] == pytest.approx(report["xor_zstd_encode_s"] / report["encode_s"])
    diff = succeed_json("diff", tmp_path / "old", tmp_path / "new", "--no-other-formats")
    assert report["changed"] == diff["changed_elements"]
    assert report["bytes_per_changed"] == diff["bytes_per_changed_element"]
    assert report["model_bytes"] == diff["model_bytes"]
    gaps = succeed_json("diff", tmp_path / "old", tmp_path / "new", "--no-other-formats", "--mode", "fast")
    assert report["gaps_bytes_per_changed"] == gaps["bytes_per_changed_element"]
    assert report["peak_extra_bytes"] >= diff["delta_bytes"]
    assert report["threads"] == 2
    scalar = codec_json(tmp_path / "old", tmp_path / "new", WEIGHTWIRE_ISA="scalar")
    assert scalar["isa"] == "scalar"
    assert "XOR + zstd-1" in succeed("codec", tmp_path / "old", tmp_path / "new", program=WEIGHTWIRE_BENCH)


def test_help_names_every_benchmark():
    for command in ("codec", "wire"):
        assert command in succeed("--help", program=WEIGHTWIRE_BENCH)
        assert "Example" in succeed(command, "--help", program=WEIGHTWIRE_BENCH)
