"""The reader of runs in reference/: the golden objects, the examples of the protocol, and runs of the command."""

import json
import re
import shutil
import sys

import pytest
from test_command_roundtrip import REPOSITORY, chain, read_directory, succeed, succeed_json, write_sharded
from test_safetensors_interop import read_by_package

sys.path.insert(0, str(REPOSITORY / "reference"))
import weightwire_reference as ww
import weightwire_run_reference as reference

OBJECTS = REPOSITORY / "spec/vectors/objects"


def test_golden_objects():
    wrong, count = reference.check_objects(OBJECTS)
    assert not wrong
    assert count > 200
    assert reference.main(["check", str(OBJECTS)]) == 0


def test_examples_of_the_protocol_are_objects():
    text = (REPOSITORY / "spec/PROTOCOL.md").read_text()
    examples = re.findall(r"^```json\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    kinds = [json.loads(example)["format"].removeprefix("weightwire-") for example in examples]
    assert sorted(set(kinds)) == sorted(reference.PARSERS)
    for kind, example in zip(kinds, examples, strict=True):
        reference.PARSERS[kind](example.encode())


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run of four versions in tmp_path/bucket; the checkpoints are tmp_path/0 … 3."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state-home"))
    for number, state in enumerate(chain(4)):
        write_sharded(tmp_path / f"{number}", state)
        succeed("publish", tmp_path / "bucket", tmp_path / f"{number}", "--step", 10 * number)
    return tmp_path / "bucket"


def test_reads_every_version_of_a_run_that_the_command_made(run, tmp_path, capsys):
    for version in range(4):
        out = tmp_path / "out.safetensors"
        assert reference.main(["checkout", str(run), str(version), str(out)]) == 0
        assert read_by_package(out) == read_directory(tmp_path / f"{version}")
        digest = succeed_json("digest", tmp_path / f"{version}")
        assert ww.state_digest(ww.read_safetensors(out)).hex() in digest.values()
    capsys.readouterr()
    assert reference.main(["versions", str(run)]) == 0
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()] == [
        ["0", "0"],
        ["1", "10"],
        ["2", "20"],
        ["3", "30"],
    ]


def damaged(path, before, after):
    content = path.read_bytes()
    assert before in content
    path.write_bytes(content.replace(before, after, 1))


def test_refuses_what_does_not_fit_together(run, tmp_path):
    def refused(change):
        copy = tmp_path / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(run, copy)
        change(copy)
        with pytest.raises(ww.DeltaError):
            reference.Run(copy).state(3)

    def record(copy, version):
        return copy / f"versions/{version:020}.json"

    reference.Run(run).state(3)
    refused(lambda copy: damaged(record(copy, 1), b'"step":"10"', b'"step":"11"'))  # the parent of 2
    refused(lambda copy: damaged(record(copy, 3), b'"total_delta_bytes":"', b'"total_delta_bytes":"1'))
    refused(lambda copy: damaged(record(copy, 3), b'"chain_start":"0"', b'"chain_start":"1"'))
    refused(lambda copy: shutil.copy(record(copy, 0), record(copy, 1)))
    refused(lambda copy: damaged(next(copy.glob("layouts/*")), b"BF16", b"FP16"))
    refused(lambda copy: damaged(next(copy.glob("anchors/*/*/anchor.json")), b'"version":"0"', b'"version":"1"'))
    refused(lambda copy: damaged(next(copy.glob("anchors/*/*/*.safetensors")), b"BF16", b"FP16"))
    refused(lambda copy: damaged(next(copy.glob(f"deltas/*-{2:020}/*")), b"weightwire", b"weightwise"))
    refused(lambda copy: shutil.rmtree(copy / "anchors"))
