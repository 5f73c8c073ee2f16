"""The run in tests/data/run-1, which version 1 of the format wrote: every later version reads it and goes on with it.

tools/make_kept_run.py made it. These tests must pass unchanged in every version."""

import hashlib
import json
import shutil
import sys

import pytest
from test_command_roundtrip import REPOSITORY, succeed, weightwire

sys.path.insert(0, str(REPOSITORY / "reference"))
import weightwire_reference as ww
import weightwire_run_reference as reference

KEPT = REPOSITORY / "tests/data/run-1"
VERSIONS = json.loads((KEPT / "versions.json").read_text())
DIGESTS = [version["digest"] for version in VERSIONS]
NEWEST, UNSENT = 7, 8
UNSUPPORTED = 7


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """A copy, because followers and publishers write to it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state-home"))
    shutil.copytree(KEPT, tmp_path / "kept")
    return tmp_path / "kept"


def digest(directory):
    return succeed("digest", directory).split("\n")[0].split()[-1]


def test_the_kept_run_has_every_kind_of_object():
    found = {path.parts[len(KEPT.parts) + 1] for path in KEPT.glob("run/**/*") if path.is_file()}
    assert found == {"run.json", "versions", "deltas", "layouts", "anchors", "leases", "gc"}
    for folder, kind in (("leases", "lease"), ("gc", "mark")):
        (path,) = (KEPT / "run" / folder).iterdir()
        reference.PARSERS[kind](path.read_bytes())


def test_the_reference_reads_every_version():
    run = reference.Run(KEPT / "run")
    assert len(run.records) == NEWEST + 1
    for version in range(NEWEST + 1):
        assert ww.state_digest(run.state(version)).hex() == DIGESTS[version]
        assert int(run.records[version]["step"]) == VERSIONS[version]["step"]


# A gc was about to remove what leads to the versions before.
@pytest.mark.parametrize("version", range(3, NEWEST + 1))
def test_a_checkout_has_the_digest_of_its_version(kept, tmp_path, version):
    succeed("checkout", f"{kept}/run@{version}", tmp_path / "out")
    assert digest(tmp_path / "out") == DIGESTS[version]


def test_the_run_is_whole_and_its_versions_are_listed(kept):
    assert weightwire("verify", kept / "run").returncode == 0
    listed = json.loads(weightwire("log", kept / "run", "--json").stdout)["versions"]
    assert [(version["version"], version["step"]) for version in listed] == [
        (version["version"], version["step"]) for version in VERSIONS[: NEWEST + 1]
    ]


def test_a_follower_goes_on_with_the_kept_mirror(kept):
    assert digest(kept / "mirror") == DIGESTS[5]
    succeed("follow", kept / "run", kept / "mirror", "--once")
    assert digest(kept / "mirror") == DIGESTS[NEWEST]


def test_a_publisher_sends_the_version_that_waited(kept, tmp_path, monkeypatch):
    (tmp_path / "state-home/weightwire").mkdir(parents=True)
    run_id = json.loads((kept / "run/run.json").read_text())["run_id"]
    shutil.copytree(kept / "state", tmp_path / "state-home/weightwire" / run_id)
    succeed("checkout", f"{kept}/run@{NEWEST}", tmp_path / "checkpoint")
    succeed("publish", kept / "run", tmp_path / "checkpoint", "--step", 1000)
    succeed("checkout", f"{kept}/run@{UNSENT}", tmp_path / "sent")
    assert digest(tmp_path / "sent") == DIGESTS[UNSENT]
    succeed("checkout", f"{kept}/run@{UNSENT + 1}", tmp_path / "next")
    assert digest(tmp_path / "next") == DIGESTS[NEWEST]


def test_gc_ends_what_the_killed_one_began(kept, tmp_path):
    shutil.rmtree(kept / "run/leases")
    succeed("gc", kept / "run", "--min-age", "0", "--grace", "0", "--keep-anchors", 2)
    assert not list(kept.glob("run/gc/*"))
    assert sorted(int(path.name) for path in kept.glob("run/anchors/*") if list(path.iterdir())) == [3, 6]
    succeed("checkout", f"{kept}/run", tmp_path / "out")
    assert digest(tmp_path / "out") == DIGESTS[NEWEST]


# --- what a later version may write -------------------------------------------------------------


def change(path, **fields):
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def with_unknown_keys(value):
    if isinstance(value, list):
        return [with_unknown_keys(member) for member in value]
    if isinstance(value, dict):
        return {key: with_unknown_keys(member) for key, member in value.items()} | {"later": {"key": [0.5, None]}}
    return value


def add_unknown_keys(run):
    """To every object of the run; hashes of objects are put right."""
    new_hashes = {}
    anchors = run.glob("anchors/*/*/anchor.json")
    for path in (run / "run.json", *run.glob("leases/*"), *run.glob("gc/*"), *anchors, *sorted(run.glob("versions/*"))):
        before = path.read_bytes()
        fields = json.loads(before)
        for holder, key in ((fields, "parent_hash"), (fields.get("anchor"), "manifest_hash")):
            if holder and holder.get(key):
                holder[key] = new_hashes[holder[key]]
        after = json.dumps(with_unknown_keys(fields)).encode()
        new_hashes[hashlib.sha256(before).hexdigest()] = hashlib.sha256(after).hexdigest()
        path.write_bytes(after)


def test_unknown_keys_in_every_object_are_ignored(kept, tmp_path):
    add_unknown_keys(kept / "run")
    run = reference.Run(kept / "run")
    assert ww.state_digest(run.state(NEWEST)).hex() == DIGESTS[NEWEST]
    assert weightwire("verify", kept / "run").returncode == 0
    succeed("follow", kept / "run", tmp_path / "mirror", "--once")
    assert digest(tmp_path / "mirror") == DIGESTS[NEWEST]
    succeed("publish", kept / "run", tmp_path / "mirror", "--step", 1000)
    assert len(reference.Run(kept / "run").records) == NEWEST + 2


def refused(words, *arguments):
    result = weightwire(*arguments)
    assert result.returncode == UNSUPPORTED, result.stderr
    for word in (*words, "update weightwire"):
        assert word in result.stderr, result.stderr


def test_a_later_format_version_is_refused(kept, tmp_path):
    change(kept / "run/run.json", format_version=2)
    words = ("format version 2",)
    refused(words, "checkout", kept / "run", tmp_path / "out")
    refused(words, "follow", kept / "run", kept / "mirror", "--once")
    refused(words, "publish", kept / "run", kept / "mirror")
    with pytest.raises(ww.Unsupported, match="Format version 2"):
        reference.Run(kept / "run")


def test_a_run_that_needs_an_unknown_feature_is_refused_by_its_name(kept, tmp_path):
    change(kept / "run/run.json", read_features=["pieces", "teleport"])
    words = ('"teleport"',)
    refused(words, "checkout", kept / "run", tmp_path / "out")
    refused(words, "follow", kept / "run", kept / "mirror", "--once")
    refused(words, "publish", kept / "run", kept / "mirror")
    with pytest.raises(ww.Unsupported, match="teleport"):
        reference.Run(kept / "run")


def test_a_version_that_needs_an_unknown_feature_is_refused_by_its_name(kept, tmp_path):
    change(kept / f"run/versions/{NEWEST:020}.json", read_features=["teleport"])
    words = ('"teleport"',)
    refused(words, "follow", kept / "run", tmp_path / "fresh", "--once")
    refused(words, "follow", kept / "run", kept / "mirror", "--once")
    refused(words, "publish", kept / "run", kept / "mirror")
    with pytest.raises(ww.Unsupported, match="teleport"):
        reference.Run(kept / "run")
    succeed("checkout", f"{kept}/run@{NEWEST - 1}", tmp_path / "out")
    assert digest(tmp_path / "out") == DIGESTS[NEWEST - 1]


def test_an_unknown_feature_for_writing_stops_writers_only(kept, tmp_path):
    change(kept / "run/run.json", write_features=["teleport"])
    words = ('"teleport"',)
    refused(words, "publish", kept / "run", kept / "mirror")
    refused(words, "gc", kept / "run")
    succeed("follow", kept / "run", kept / "mirror", "--once")
    assert digest(kept / "mirror") == DIGESTS[NEWEST]
