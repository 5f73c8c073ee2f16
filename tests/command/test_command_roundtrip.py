"""The command: diff and apply give NEW bit for bit, for every type, mode and form of checkpoint; what it prints."""

import json
import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
import safetensors
from exit_statuses import CORRUPT, INVALID_ARGUMENT, MISMATCH, UNSUPPORTED
from test_safetensors_interop import BITS, random_bytes, read_by_package, write_by_hand

REPOSITORY = Path(__file__).resolve().parents[2]
WEIGHTWIRE = os.environ.get("WEIGHTWIRE", str(REPOSITORY / "build/weightwire"))
WEIGHTWIRE_BENCH = WEIGHTWIRE + "-bench"
MODES = ("auto", "fast")


def weightwire(*arguments, program=WEIGHTWIRE, **environment):
    """The finished process, whatever its status."""
    return subprocess.run(
        [program, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


def succeed(*arguments, **environment):
    """What it printed; a test failure unless it succeeded without a word on stderr."""
    result = weightwire(*arguments, **environment)
    assert (result.returncode, result.stderr) == (0, ""), result.stderr
    return result.stdout


def succeed_json(*arguments, **environment):
    return json.loads(succeed(*arguments, "--json", **environment))


def change_some(content, share, seed):
    """The same bytes with about that share of them changed a little."""
    rng = np.random.default_rng(seed)
    data = np.frombuffer(content, np.uint8).copy()
    data[rng.random(data.size) < share] ^= 1
    return data.tobytes()


def states_of_every_type(share=0.05):
    """Two states with a matrix, an empty tensor and a scalar of every type: name -> (dtype, shape, bytes)."""
    old, new = {}, {}
    for seed, (dtype, bits) in enumerate(BITS.items()):
        for name, shape in {"matrix": [64, 40], "odd": [8, 7], "empty": [0, 5], "scalar": []}.items():
            size_bits = bits * int(np.prod(shape, dtype=np.int64))
            if size_bits % 8:
                continue
            content = random_bytes(size_bits // 8, seed, dtype)
            old[f"{dtype}.{name}"] = (dtype, shape, content)
            new[f"{dtype}.{name}"] = (dtype, shape, change_some(content, share, seed))
    return old, new


def bf16(count, seed):
    """Weights as models have them."""
    values = np.random.default_rng(seed).normal(0, 0.02, count).astype(np.float32)
    return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()


def step(content, share, seed):
    """A step of training: that share of bf16 weights moves to the next number."""
    rng = np.random.default_rng(seed)
    data = np.frombuffer(content, np.uint16).copy()
    moved = rng.random(data.size) < share
    data[moved] += rng.choice(np.array([1, 0xFFFF], np.uint16), int(moved.sum()))
    return data.tobytes()


def chain(count, size=20_000, share=0.02):
    """Consecutive states of a small model."""
    states = [{name: ("BF16", [size // 100, 100], bf16(size, seed)) for seed, name in enumerate("abc")}]
    for seed in range(1, count):
        last = states[-1]
        states.append({name: (*spec[:2], step(spec[2], share, seed)) for name, spec in last.items()})
    return states


def write_sharded(directory, tensors, shards=2, metadata=None):
    """A Hugging Face directory with an index, a configuration and a tokenizer in a sub-directory."""
    directory.mkdir()
    names = sorted(tensors)
    weight_map = {}
    for k in range(shards):
        file = f"model-{k + 1:05}-of-{shards:05}.safetensors"
        part = names[k::shards]
        weight_map.update({name: file for name in part})
        write_by_hand(directory / file, {name: tensors[name] for name in part}, metadata or {"format": "pt"})
    index = {"metadata": {"total_size": sum(len(tensors[n][2]) for n in names)}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    (directory / "config.json").write_text('{"model_type": "test"}')
    (directory / "tokenizer").mkdir()
    (directory / "tokenizer/vocab.txt").write_bytes(b"a\nb\n\xff")


def read_directory(directory):
    tensors = {}
    for file in directory.glob("*.safetensors"):
        tensors.update(read_by_package(file))
    return tensors


def snapshot(path):
    """Every file at or below a path with its bytes, to see that nothing was touched."""
    if path.is_file():
        return {path.name: path.read_bytes()}
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("share", [0.05, 0.9])
def test_every_type_in_every_mode(tmp_path, mode, share):
    old, new = states_of_every_type(share)
    write_by_hand(tmp_path / "old", old)
    write_by_hand(tmp_path / "new", new)
    report = succeed_json("diff", tmp_path / "old", tmp_path / "new", "-o", tmp_path / "delta", "--mode", mode)
    assert report["delta_bytes"] == (tmp_path / "delta").stat().st_size
    assert report["tensors"] == len(new)
    assert report["changed_tensors"] == sum(old[name] != new[name] for name in new)
    if mode == "fast":
        modes = {tensor["mode"] for tensor in report["per_tensor"]}
        # Gaps mode gives way where it would take more than all of the tensor.
        assert modes <= {"gaps", "whole"}
        assert "gaps" in modes or share > 0.5
    succeed("apply", tmp_path / "old", tmp_path / "delta", "-o", tmp_path / "out")
    assert read_by_package(tmp_path / "out") == read_by_package(tmp_path / "new")


def test_the_same_bytes_on_every_instruction_set_and_number_of_threads(tmp_path):
    first, second = chain(2)
    write_by_hand(tmp_path / "old", first)
    write_by_hand(tmp_path / "new", second)
    files = set()
    for number, (isa, threads) in enumerate([("", 1), ("", 3), ("scalar", 2)]):
        delta = tmp_path / f"delta{number}"
        succeed("diff", tmp_path / "old", tmp_path / "new", "-o", delta, "--threads", threads, WEIGHTWIRE_ISA=isa)
        files.add(delta.read_bytes())
    assert len(files) == 1


def test_several_deltas_are_applied_at_once(tmp_path):
    states = chain(4)
    for number, state in enumerate(states):
        write_by_hand(tmp_path / f"{number}", state)
    deltas = [tmp_path / f"{number}.delta" for number in range(1, 4)]
    for number, delta in enumerate(deltas):
        succeed("diff", tmp_path / f"{number}", tmp_path / f"{number + 1}", "-o", delta)
    report = succeed_json("apply", tmp_path / "0", *deltas, "-o", tmp_path / "out")
    assert report["deltas"] == 3
    assert read_by_package(tmp_path / "out") == read_by_package(tmp_path / "3")
    assert succeed_json("digest", tmp_path / "3")["digest"] == report["digest_after"]
    assert succeed_json("apply", tmp_path / "0", *deltas, "--in-place")["digest_after"] == report["digest_after"]
    assert (tmp_path / "0").read_bytes() == (tmp_path / "3").read_bytes()


@pytest.mark.parametrize("in_place", [False, True])
def test_a_sharded_directory_keeps_its_form_and_its_other_files(tmp_path, in_place):
    first, second = chain(2)
    write_sharded(tmp_path / "base", first)
    write_by_hand(tmp_path / "new.safetensors", second)  # another form: only names, types, shapes and bits count
    before = snapshot(tmp_path / "base")
    succeed("diff", tmp_path / "base", tmp_path / "new.safetensors", "-o", tmp_path / "delta")
    out = tmp_path / "base" if in_place else tmp_path / "out"
    succeed("apply", tmp_path / "base", tmp_path / "delta", *(["--in-place"] if in_place else ["-o", out]))
    assert read_directory(out) == second
    after = snapshot(out)
    assert set(after) == set(before)
    for name in before:
        assert (after[name] == before[name]) == (not name.endswith(".safetensors"))
    if not in_place:
        assert snapshot(tmp_path / "base") == before


def test_tensors_are_added_removed_reshaped_and_retyped(tmp_path):
    old = {
        "gone": ("F32", [4], random_bytes(16, 1)),
        "kept": ("BF16", [50, 40], bf16(2000, 2)),
        "reshaped": ("U8", [2, 6], random_bytes(12, 3)),
        "retyped": ("F16", [8], random_bytes(16, 4)),
    }
    new = {
        "added": ("I64", [3], random_bytes(24, 5)),
        "kept": ("BF16", [50, 40], step(old["kept"][2], 0.05, 1)),
        "reshaped": ("U8", [3, 4], old["reshaped"][2]),
        "retyped": ("BF16", [8], old["retyped"][2]),
    }
    write_sharded(tmp_path / "old", old)
    write_sharded(tmp_path / "new", new)
    report = succeed_json("diff", tmp_path / "old", tmp_path / "new", "-o", tmp_path / "delta")
    assert report["added"] == ["added", "reshaped", "retyped"]
    assert report["removed"] == ["gone", "reshaped", "retyped"]
    assert re.search(r"^removed +gone F32 \[4\]$", succeed("diff", tmp_path / "old", tmp_path / "new"), re.MULTILINE)
    succeed("apply", tmp_path / "old", tmp_path / "delta", "-o", tmp_path / "out")
    assert read_directory(tmp_path / "out") == new
    index = json.loads((tmp_path / "out/model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(new)
    # And back.
    succeed("diff", tmp_path / "new", tmp_path / "old", "-o", tmp_path / "back")
    succeed("apply", tmp_path / "out", tmp_path / "back", "-o", tmp_path / "again")
    assert read_directory(tmp_path / "again") == old
    # A layout that changes cannot be written in place, and nothing is.
    before = snapshot(tmp_path / "old")
    result = weightwire("apply", tmp_path / "old", tmp_path / "delta", "--in-place")
    assert result.returncode == INVALID_ARGUMENT and "-o" in result.stderr
    assert snapshot(tmp_path / "old") == before


@pytest.mark.parametrize("in_place", [False, True])
def test_tied_weights_reach_a_target_that_holds_both_names(tmp_path, in_place):
    embed = bf16(3000, 1)
    after = step(embed, 0.03, 2)
    tie = {"format": "pt", "lm_head.weight": "embed.weight"}
    write_by_hand(tmp_path / "old", {"embed.weight": ("BF16", [30, 100], embed)}, tie)
    write_by_hand(tmp_path / "new", {"embed.weight": ("BF16", [30, 100], after)}, tie)
    both = {name: ("BF16", [30, 100], embed) for name in ("embed.weight", "lm_head.weight")}
    write_by_hand(tmp_path / "both", both)
    succeed("diff", tmp_path / "old", tmp_path / "new", "-o", tmp_path / "delta")
    succeed("apply", tmp_path / "old", tmp_path / "delta", "-o", tmp_path / "out")
    assert read_by_package(tmp_path / "out") == read_by_package(tmp_path / "new")
    target = tmp_path / "both" if in_place else tmp_path / "both.out"
    succeed("apply", tmp_path / "both", tmp_path / "delta", *(["--in-place"] if in_place else ["-o", target]))
    assert {name: content for name, (_, _, content) in read_by_package(target).items()} == {
        "embed.weight": after,
        "lm_head.weight": after,
    }


def test_a_tie_whose_kept_name_switches(tmp_path):
    """OLD keeps embed, NEW keeps head; what comes out is NEW, and the next delta applies to it."""
    embed, other = bf16(3000, 1), ("BF16", [10], bf16(10, 2))
    states = [embed, step(embed, 0.03, 2), step(embed, 0.05, 3)]
    names = [("embed", "head"), ("head", "embed"), ("head", "embed")]
    for number, (content, (kept, alias)) in enumerate(zip(states, names, strict=True)):
        write_by_hand(tmp_path / f"{number}", {kept: ("BF16", [3000], content), "other": other}, {alias: kept})
    for number in (1, 2):
        succeed("diff", tmp_path / f"{number - 1}", tmp_path / f"{number}", "-o", tmp_path / f"{number}.delta")
    report = succeed_json("apply", tmp_path / "0", tmp_path / "1.delta", "-o", tmp_path / "out")
    assert read_by_package(tmp_path / "out") == read_by_package(tmp_path / "1")
    assert succeed_json("digest", tmp_path / "out") == succeed_json("digest", tmp_path / "1")
    assert report["digest_after"] == succeed_json("digest", tmp_path / "out")["digest"]
    # The next one: on what came out, and on a base that keeps the other name.
    write_by_hand(
        tmp_path / "otherwise", {"embed": ("BF16", [3000], states[1]), "other": other}, {"head": "embed", "x": "embed"}
    )
    for base in ("out", "otherwise"):
        succeed("apply", tmp_path / base, tmp_path / "2.delta", "-o", tmp_path / f"{base}.2")
        assert read_by_package(tmp_path / f"{base}.2") == read_by_package(tmp_path / "2")
        succeed("apply", tmp_path / base, tmp_path / "2.delta", "--in-place")
        assert sorted(content for _, _, content in read_by_package(tmp_path / base).values()) == sorted(
            content for _, _, content in read_by_package(tmp_path / "2").values()
        )


def test_ties_that_a_delta_does_not_know_do_not_matter(tmp_path):
    embed = bf16(3000, 1)
    after = step(embed, 0.03, 2)
    write_by_hand(tmp_path / "old", {"embed": ("BF16", [3000], embed)})
    write_by_hand(tmp_path / "new", {"embed": ("BF16", [3000], after)})
    tie = {"format": "pt", "head": "embed"}
    write_by_hand(tmp_path / "base", {"embed": ("BF16", [3000], embed)}, tie)
    write_by_hand(tmp_path / "expected", {"embed": ("BF16", [3000], after)}, tie)
    succeed("diff", tmp_path / "old", tmp_path / "new", "-o", tmp_path / "delta")
    succeed("apply", tmp_path / "base", tmp_path / "delta", "-o", tmp_path / "out")
    succeed("apply", tmp_path / "base", tmp_path / "delta", "--in-place")
    for name in ("out", "base"):
        with safetensors.safe_open(tmp_path / name, "np") as file:
            assert file.metadata() == tie
        assert read_by_package(tmp_path / name) == read_by_package(tmp_path / "expected")


def test_an_index_of_no_shards_gets_tensors(tmp_path):
    (tmp_path / "old").mkdir()
    (tmp_path / "old/model.safetensors.index.json").write_text('{"weight_map": {}}')
    (tmp_path / "old/config.json").write_text("{}")
    write_by_hand(tmp_path / "new", {"a": ("U8", [3], b"abc")})
    succeed("diff", tmp_path / "old", tmp_path / "new", "-o", tmp_path / "delta")
    succeed("apply", tmp_path / "old", tmp_path / "delta", "-o", tmp_path / "out")
    assert sorted(snapshot(tmp_path / "out")) == ["config.json", "model.safetensors"]
    assert read_directory(tmp_path / "out") == read_by_package(tmp_path / "new")


def test_what_apply_leaves_out_is_said(tmp_path):
    first, second = chain(2)
    write_sharded(tmp_path / "base", first)
    write_by_hand(tmp_path / "new", second)
    succeed("diff", tmp_path / "base", tmp_path / "new", "-o", tmp_path / "delta")
    (tmp_path / "base/tokenizer/inner.safetensors").write_bytes(b"carried")
    (tmp_path / "base/adapter\x1b.safetensors").write_bytes(b"left out")
    (tmp_path / "base/linked").symlink_to(tmp_path / "base/tokenizer")
    report = succeed_json("apply", tmp_path / "base", tmp_path / "delta", "-o", tmp_path / "out")
    assert report["left_out"] == ["adapter\x1b.safetensors", "linked"]
    assert (tmp_path / "out/tokenizer/inner.safetensors").read_bytes() == b"carried"
    assert not (tmp_path / "out/linked").exists()
    text = succeed("apply", tmp_path / "base", tmp_path / "delta", "-o", tmp_path / "out2")
    assert text.endswith("left out       adapter\\u001b.safetensors\nleft out       linked\n")
    assert succeed_json("apply", tmp_path / "new", "--in-place") == {"finished": False}


def test_names_with_control_characters_are_escaped(tmp_path):
    name = "a\x1b[2J\n\u009bb"
    write_by_hand(tmp_path / "old", {name: ("U8", [3], b"abc"), "gone\x07": ("U8", [1], b"x")})
    write_by_hand(tmp_path / "new", {name: ("U8", [3], b"abd")})
    delta = tmp_path / "delta"
    texts = [
        succeed("diff", tmp_path / "old", tmp_path / "new", "-o", delta),
        succeed("inspect", delta, "--base", tmp_path / "old"),
        succeed("digest", tmp_path / "old", "--tensors"),
    ]
    write_by_hand(tmp_path / "other", {name: ("U8", [3], b"xyz"), "gone\x07": ("U8", [1], b"x")})
    result = weightwire("apply", tmp_path / "other", delta, "-o", tmp_path / "out")
    assert result.returncode == MISMATCH
    for text in (*texts, result.stderr):
        assert not [c for c in text if c != "\n" and (c < " " or "\x7f" <= c < "\xa0")]
    for text in texts:
        assert "a\\u001b[2J\\u000a\\u009bb" in text


def test_a_target_whose_tied_names_differ_is_refused(tmp_path):
    embed = bf16(3000, 1)
    tie = {"lm_head.weight": "embed.weight"}
    write_by_hand(tmp_path / "old", {"embed.weight": ("BF16", [3000], embed)}, tie)
    write_by_hand(tmp_path / "new", {"embed.weight": ("BF16", [3000], step(embed, 0.1, 2))}, tie)
    write_by_hand(
        tmp_path / "both",
        {"embed.weight": ("BF16", [3000], embed), "lm_head.weight": ("BF16", [3000], step(embed, 0.1, 3))},
    )
    succeed("diff", tmp_path / "old", tmp_path / "new", "-o", tmp_path / "delta")
    before = snapshot(tmp_path / "both")
    result = weightwire("apply", tmp_path / "both", tmp_path / "delta", "--in-place")
    assert result.returncode == MISMATCH and "tied" in result.stderr
    assert snapshot(tmp_path / "both") == before


def test_diff_json(tmp_path):
    old = {"w": ("BF16", [100, 100], bf16(10_000, 1)), "still": ("F32", [5], random_bytes(20, 1))}
    values = np.frombuffer(old["w"][2], np.uint16).copy()
    values[::50] += 1
    values[25::500] += 9
    new = {**old, "w": ("BF16", [100, 100], values.tobytes())}
    write_by_hand(tmp_path / "old", old)
    write_by_hand(tmp_path / "new", new)
    report = succeed_json("diff", tmp_path / "old", tmp_path / "new")
    assert report["elements"] == 10_005
    assert report["changed_elements"] == 220
    assert report["tensors"] == 2
    assert report["changed_tensors"] == 1
    assert report["model_bytes"] == 20_020
    assert report["bytes_per_changed_element"] == report["delta_bytes"] / 220
    assert report["single_step_ratio"] == 200 / 220
    assert report["trl_raw_bytes"] == 220 * 6
    assert report["trl_gap_bytes"] == 220 * 4
    assert 220 < report["xor_zstd_bytes"] < 20_000
    assert [tensor["name"] for tensor in report["per_tensor"]] == ["w"]
    assert report["digest_before"] == succeed_json("digest", tmp_path / "old")["digest"]
    assert report["digest_after"] == succeed_json("digest", tmp_path / "new")["digest"]
    every = succeed_json("diff", tmp_path / "old", tmp_path / "new", "--all", "--no-other-formats")
    assert [tensor["mode"] for tensor in every["per_tensor"]] == ["unchanged", report["per_tensor"][0]["mode"]]
    assert "xor_zstd_bytes" not in every
    assert not list(tmp_path.glob("*.tmp"))


def test_diff_of_equal_states(tmp_path):
    (state,) = chain(1)
    write_by_hand(tmp_path / "old", state)
    report = succeed_json("diff", tmp_path / "old", tmp_path / "old", "-o", tmp_path / "delta")
    assert (report["changed_elements"], report["changed_tensors"], report["bytes_per_changed_element"]) == (0, 0, None)
    assert "nothing changed" in succeed("diff", tmp_path / "old", tmp_path / "old")
    succeed("apply", tmp_path / "old", tmp_path / "delta", "-o", tmp_path / "out")
    assert read_by_package(tmp_path / "out") == read_by_package(tmp_path / "old")


def test_diff_as_text_names_what_changed(tmp_path):
    first, second = chain(2)
    second["b"] = first["b"]
    write_by_hand(tmp_path / "old", first)
    write_by_hand(tmp_path / "new", second)
    text = succeed("diff", tmp_path / "old", tmp_path / "new")
    assert re.search(r"^a +BF16", text, re.MULTILINE)
    assert not re.search(r"^b +BF16", text, re.MULTILINE)
    assert re.search(r"^b +BF16", succeed("diff", tmp_path / "old", tmp_path / "new", "--all"), re.MULTILINE)
    for word in ("TRL gap", "TRL raw", "XOR + zstd-1", "per changed", "one ulp"):
        assert word in text


def test_digest_does_not_depend_on_files(tmp_path):
    (state,) = chain(1)
    write_by_hand(tmp_path / "one", state)
    write_sharded(tmp_path / "many", state)
    one, many = (succeed_json("digest", tmp_path / name, "--tensors") for name in ("one", "many"))
    assert one == many
    assert [tensor["name"] for tensor in one["per_tensor"]] == sorted(state)
    assert one["digest"] in succeed("digest", tmp_path / "one")


def test_inspect(tmp_path):
    first, second = chain(2)
    second["b"] = first["b"]
    write_by_hand(tmp_path / "old", first)
    write_by_hand(tmp_path / "new", second)
    delta = tmp_path / "delta"
    report = succeed_json("diff", tmp_path / "old", tmp_path / "new", "-o", delta)
    shown = succeed_json("inspect", delta)
    assert shown["delta_bytes"] == report["delta_bytes"]
    sizes = [shown[f"{part}_bytes"] for part in ("header", "index", "tables", "payload")]
    assert sum(sizes) == shown["delta_bytes"]
    assert shown["digest_before"] == report["digest_before"]
    assert shown["digest_after"] == report["digest_after"]
    assert [entry["tensor"] for entry in shown["entries"]] == [0, 2]
    assert sum(entry["changed_elements"] for entry in shown["entries"]) == report["changed_elements"]
    assert "name" not in shown["entries"][0]
    assert shown["table_sets"]
    for where in (["--base", tmp_path / "old"], ["--base", tmp_path / "new"]):
        assert [entry["name"] for entry in succeed_json("inspect", delta, *where)["entries"]] == ["a", "c"]
    assert re.search(r"^#2 +", succeed("inspect", delta), re.MULTILINE)
    assert re.search(r"^c +", succeed("inspect", delta, "--base", tmp_path / "old"), re.MULTILINE)


@pytest.mark.parametrize("kind", ["good", "bad"])
def test_inspect_of_every_golden_file(kind):
    folders = sorted((REPOSITORY / "spec/vectors" / kind).iterdir())
    assert len(folders) > 60
    for folder in folders:
        for arguments in ([], ["--base", folder / "base.safetensors", "--json"]):
            result = weightwire("inspect", folder / "delta.safetensors", *arguments)
            if kind == "good":
                assert (result.returncode, result.stderr) == (0, ""), folder.name
            else:
                assert result.returncode in (0, CORRUPT, MISMATCH, UNSUPPORTED), (folder.name, result.stderr)


def test_help_and_version():
    version = re.search(r"project\(weightwire VERSION ([\d.]+)", (REPOSITORY / "CMakeLists.txt").read_text())[1]
    assert succeed("--version") == f"weightwire {version}\n"
    for command in ("diff", "apply", "inspect", "digest"):
        assert command in succeed("--help")
        assert "Example" in succeed(command, "--help")
