"""What goes silently wrong elsewhere, done to a run and its mirror: each ends in an exact state or a clear sentence."""

import json
import random
import shutil
import struct

import numpy as np
import pytest
from test_command_roundtrip import bf16, chain, read_directory, succeed, succeed_json, weightwire, write_sharded
from test_run_commands import (
    CORRUPT,
    MISMATCH,
    checkpoint_files,
    part_of,
    refused,
    same_checkpoint,
    versions,
)
from test_safetensors_interop import write_by_hand


@pytest.fixture(autouse=True)
def state_home(tmp_path, monkeypatch):
    """Base copies and spools go here, not into the home directory."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state-home"))


@pytest.fixture
def run(tmp_path):
    """A run of four versions in tmp_path/bucket, of which tmp_path/mirror holds version 2; checkpoints 0 … 3."""
    for number, state in enumerate(chain(4, size=2_000)):
        write_sharded(tmp_path / f"{number}", state)
        succeed("publish", tmp_path / "bucket", tmp_path / f"{number}", "--step", 10 * number)
    succeed("follow", tmp_path / "bucket", tmp_path / "mirror", "--until", 2)
    return tmp_path / "bucket"


def flip(path, offset):
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


# --- the base is not what it should be ---


def test_a_base_of_another_history_with_the_same_version_number(run, tmp_path):
    """Two buckets that were one: they have the same run and the same numbers, and differ from version 4 on."""
    shutil.copytree(run, tmp_path / "fork")
    states = chain(7, size=2_000)
    for number, bucket in ((4, run), (5, tmp_path / "fork")):
        write_sharded(tmp_path / f"{number}", states[number])
        succeed("publish", bucket, tmp_path / f"{number}", "--state-dir", tmp_path / f"state{number}")
    write_sharded(tmp_path / "6", states[6])
    succeed("publish", tmp_path / "fork", tmp_path / "6", "--state-dir", tmp_path / "state5")
    succeed("follow", run, tmp_path / "mirror", "--once")
    before = checkpoint_files(tmp_path / "mirror")
    refused(MISMATCH, "version 4", "follow", tmp_path / "fork", tmp_path / "mirror", "--once")
    assert checkpoint_files(tmp_path / "mirror") == before
    same_checkpoint(tmp_path / "mirror", tmp_path / "4")


def test_a_mirror_whose_files_were_replaced_by_those_of_another_version(run, tmp_path):
    succeed("checkout", f"{run}@0", tmp_path / "out")
    shutil.copy(tmp_path / "out/model.safetensors", tmp_path / "mirror/model.safetensors")
    result = weightwire("follow", run, tmp_path / "mirror", "--once")
    assert result.returncode == 0 and "loaded again" in result.stderr and result.stderr.count("\n") == 1
    same_checkpoint(tmp_path / "mirror", tmp_path / "3")


def test_one_wrong_byte_in_a_tensor_that_no_delta_touches(tmp_path):
    states = [chain(1, size=2_000)[0]]
    for number in (1, 2):
        name, shape, content = states[-1]["a"]
        moved = bytearray(content)
        moved[number] ^= 1
        states.append({**states[-1], "a": (name, shape, bytes(moved))})
    for number, state in enumerate(states):
        write_sharded(tmp_path / f"{number}", state, shards=3)
        succeed("publish", tmp_path / "bucket", tmp_path / f"{number}")
        if number == 1:
            succeed("follow", tmp_path / "bucket", tmp_path / "mirror", "--once")
    (untouched,) = (f for f in (tmp_path / "mirror").glob("*.safetensors") if b'"c"' in f.read_bytes()[:200])
    flip(untouched, -1)
    result = weightwire("follow", tmp_path / "bucket", tmp_path / "mirror", "--once")
    assert result.returncode == 0 and "loaded again" in result.stderr and result.stderr.count("\n") == 1
    same_checkpoint(tmp_path / "mirror", tmp_path / "2")


# --- what comes over the wire is not what was sent ---


def test_sixty_random_bit_flips_in_a_part_and_then_the_good_one(run, tmp_path):
    """Each is refused, the mirror stays exact, and the good part is taken as if nothing had been."""
    part = part_of(run, 3)
    good = part.read_bytes()
    before = checkpoint_files(tmp_path / "mirror")
    rng = random.Random(1)
    for _ in range(60):
        bit = rng.randrange(8 * len(good))
        part.write_bytes(good[: bit // 8] + bytes([good[bit // 8] ^ 1 << bit % 8]) + good[bit // 8 + 1 :])
        refused(CORRUPT, "no way to version 3", "follow", run, tmp_path / "mirror", "--once")
        assert checkpoint_files(tmp_path / "mirror") == before
    part.write_bytes(good)
    succeed("follow", run, tmp_path / "mirror", "--once")
    same_checkpoint(tmp_path / "mirror", tmp_path / "3")


def test_a_part_cut_short_at_any_length(run, tmp_path):
    part = part_of(run, 3)
    good = part.read_bytes()
    for size in (0, 1, 8, 100, len(good) // 2, len(good) - 1):
        part.write_bytes(good[:size])
        refused(CORRUPT, "no way to version 3", "follow", run, tmp_path / "mirror", "--once")
        same_checkpoint(tmp_path / "mirror", tmp_path / "2")
    part.write_bytes(good)
    succeed("follow", run, tmp_path / "mirror", "--once")
    same_checkpoint(tmp_path / "mirror", tmp_path / "3")


def test_a_damaged_anchor_and_then_the_good_one(run, tmp_path):
    """A first load that finds damage leaves nothing that looks like a version."""
    anchor = next((run / "anchors").rglob("model.safetensors"))
    flip(anchor, -5)
    refused(CORRUPT, "no way to version 3", "follow", run, tmp_path / "fresh", "--once")
    assert not list((tmp_path / "fresh").glob("*.safetensors"))
    refused(CORRUPT, "is damaged", "verify", run)
    flip(anchor, -5)
    succeed("follow", run, tmp_path / "fresh", "--once")
    same_checkpoint(tmp_path / "fresh", tmp_path / "3")


def test_the_same_delta_a_second_time(run, tmp_path):
    """A record that names the delta of the version before once more, with its right hash."""
    path = run / f"versions/{3:020}.json"
    good = path.read_text()
    forged = json.loads(good)
    forged["delta"] = json.loads((run / f"versions/{2:020}.json").read_text())["delta"]
    path.write_text(json.dumps(forged))
    before = checkpoint_files(tmp_path / "mirror")
    result = weightwire("follow", run, tmp_path / "mirror", "--once")
    assert result.returncode != 0 and result.stderr.count("\n") == 1, result.stderr
    assert checkpoint_files(tmp_path / "mirror") == before
    path.write_text(good)
    for _ in range(2):
        succeed("follow", run, tmp_path / "mirror", "--once")
        same_checkpoint(tmp_path / "mirror", tmp_path / "3")
    succeed("follow", run, tmp_path / "mirror", "--once", "--pin", 2)
    succeed("follow", run, tmp_path / "mirror", "--once")
    same_checkpoint(tmp_path / "mirror", tmp_path / "3")


def test_parts_exchanged_between_versions(run, tmp_path):
    second, third = part_of(run, 2), part_of(run, 3)
    bytes_of_second = second.read_bytes()
    second.write_bytes(third.read_bytes())
    third.write_bytes(bytes_of_second)
    refused(CORRUPT, "no way to version 3", "follow", run, tmp_path / "mirror", "--once")
    same_checkpoint(tmp_path / "mirror", tmp_path / "2")
    refused(CORRUPT, "is damaged", "verify", run)


# --- changes that weak checks do not see ---


def values_of(case, old):
    new = old.copy()
    if case == "two values swapped":
        new[[3, 77]] = new[[77, 3]]
    elif case == "a thousand reversed":
        new[500:1500] = new[500:1500][::-1]
    elif case == "two thousand shifted":
        new[1000:3000] = np.roll(new[1000:3000], 1)
    elif case == "+0 becomes -0":
        new[:10] = 0x8000
    elif case == "-0 becomes +0":
        new[10:20] = 0x0000
    elif case == "a weight becomes NaN":
        new[100] = 0x7FC0
    elif case == "a NaN becomes another NaN":
        new[20] = 0xFFC1
    elif case == "two signs flip":
        new[[200, 300]] ^= 0x8000
    return new


@pytest.mark.parametrize(
    "case",
    [
        "two values swapped",
        "a thousand reversed",
        "two thousand shifted",
        "+0 becomes -0",
        "-0 becomes +0",
        "a weight becomes NaN",
        "a NaN becomes another NaN",
        "two signs flip",
    ],
)
def test_every_bit_arrives_when(tmp_path, case):
    old = np.frombuffer(bf16(4_000, 1), np.uint16).copy()
    old[:10], old[10:20], old[20] = 0x0000, 0x8000, 0x7FC0
    for name, values in (("old", old), ("new", values_of(case, old))):
        write_by_hand(tmp_path / name, {"w": ("BF16", [4_000], values.tobytes())})
        succeed("publish", tmp_path / "bucket", tmp_path / name)
        succeed("follow", tmp_path / "bucket", tmp_path / "mirror", "--once")
        assert read_directory(tmp_path / "mirror") == {"w": ("BF16", [4_000], values.tobytes())}
    states = [version["digest"] for version in versions(tmp_path / "bucket")]
    assert len(states) == 2 and states[0] != states[1]
    # And a mirror that has them where they do not belong is found out.
    succeed("follow", tmp_path / "bucket", tmp_path / "back", "--until", 0)
    shutil.copy(tmp_path / "new", tmp_path / "back/model.safetensors")
    assert "loaded again" in weightwire("follow", tmp_path / "bucket", tmp_path / "back", "--until", 0).stderr
    assert read_directory(tmp_path / "back") == {"w": ("BF16", [4_000], old.tobytes())}


def test_changes_beyond_four_gigabytes_in_one_tensor(tmp_path):
    """The files are all holes, so they take no room; what changes lies on both sides of 2^32."""
    size = (1 << 32) + 4096
    header = json.dumps({"t": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    header += b" " * (-len(header) % 8)
    places = (5, (1 << 32) - 1, 1 << 32, size - 1)
    start = 8 + len(header)
    for name in ("old", "new"):
        with open(tmp_path / name, "wb") as file:
            file.write(struct.pack("<Q", len(header)) + header)
            file.truncate(start + size)
            for place in places if name == "new" else ():
                file.seek(start + place)
                file.write(b"\x07")
    out = succeed_json("diff", tmp_path / "old", tmp_path / "new", "-o", tmp_path / "delta", "--no-other-formats")
    assert out["changed_elements"] == len(places)
    succeed("apply", tmp_path / "old", tmp_path / "delta", "--in-place")
    with open(tmp_path / "old", "rb") as file:
        for place in places:
            file.seek(start + place)
            assert file.read(1) == b"\x07"
    # All other bytes, too: the digest after was taken from the new file, and is checked by applying the delta again.
    refused(MISMATCH, "", "apply", tmp_path / "old", tmp_path / "delta", "--in-place")
