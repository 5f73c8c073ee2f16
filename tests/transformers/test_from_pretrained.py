"""Directories we write load in transformers, and tied weights survive both ways in which they are saved."""

import json
import os
import subprocess

import pytest
import safetensors.torch
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM


def tiny_model(tied, seed=0):
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=96,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=tied,
        dtype="bfloat16",
    )
    return LlamaForCausalLM(config).to(torch.bfloat16)


def bits(model):
    return {name: tensor.contiguous().view(torch.int16).clone() for name, tensor in model.state_dict().items()}


def assert_same_bits(actual, expected):
    assert actual.keys() == expected.keys()
    different = [name for name in expected if not torch.equal(actual[name], expected[name])]
    assert not different


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("shard_size", ["1GB", "20KB"])
def test_a_written_directory_loads(tmp_path, roundtrip, tied, shard_size):
    model = tiny_model(tied)
    model.save_pretrained(tmp_path / "saved", max_shard_size=shard_size)
    is_sharded = (tmp_path / "saved/model.safetensors.index.json").exists()
    assert is_sharded == (shard_size == "20KB")

    roundtrip(tmp_path / "saved", tmp_path / "out")
    for path in (tmp_path / "saved").iterdir():
        if path.suffix == ".json":
            assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.bfloat16)
    assert_same_bits(bits(loaded), bits(model))
    assert (loaded.lm_head.weight is loaded.model.embed_tokens.weight) == tied


def test_fresh_shards_load(tmp_path, roundtrip):
    model = tiny_model(tied=False)
    model.save_pretrained(tmp_path / "saved")
    roundtrip(tmp_path / "saved", tmp_path / "out", 20_000)
    (tmp_path / "out/config.json").write_bytes((tmp_path / "saved/config.json").read_bytes())
    weight_map = json.loads((tmp_path / "out/model.safetensors.index.json").read_text())["weight_map"]
    assert len(set(weight_map.values())) > 1
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.bfloat16)
    assert_same_bits(bits(loaded), bits(model))


@pytest.mark.parametrize("fresh", [False, True])
def test_a_tie_recorded_by_save_model_survives(tmp_path, roundtrip, fresh):
    model = tiny_model(tied=True)
    safetensors.torch.save_model(model, tmp_path / "saved.safetensors", metadata={"format": "pt"})
    with safetensors.safe_open(tmp_path / "saved.safetensors", framework="pt") as file:
        metadata, names = file.metadata(), set(file.keys())
    removed = set(metadata) - {"format"}
    assert removed and not removed & names

    output = roundtrip(tmp_path / "saved.safetensors", tmp_path / "out", *([10**9] if fresh else []))
    written = output / "model.safetensors" if fresh else output
    with safetensors.safe_open(written, framework="pt") as file:
        assert file.metadata() == metadata
        assert set(file.keys()) == names
    other = tiny_model(tied=True, seed=1)
    safetensors.torch.load_model(other, written)
    assert_same_bits(bits(other), bits(model))


def test_the_comparison_sees_a_single_bit():
    """Guards the tests above."""
    expected = bits(tiny_model(tied=False))
    actual = {name: tensor.clone() for name, tensor in expected.items()}
    actual["lm_head.weight"][0, 0] ^= 1
    with pytest.raises(AssertionError):
        assert_same_bits(actual, expected)


@pytest.mark.parametrize("tied", [False, True])
def test_what_comes_out_of_a_run_loads(tmp_path, tied):
    """Published twice, then checked out and followed."""

    def weightwire(*arguments):
        subprocess.run([os.environ["WEIGHTWIRE"], *map(str, arguments)], check=True)

    model = tiny_model(tied)
    for step in range(2):
        with torch.no_grad():
            model.model.layers[0].mlp.up_proj.weight[step] += 1
        model.save_pretrained(tmp_path / f"{step}")
        weightwire("publish", tmp_path / "bucket", tmp_path / f"{step}", "--state-dir", tmp_path / "state")
    weightwire("checkout", tmp_path / "bucket", tmp_path / "out")
    weightwire("follow", tmp_path / "bucket", tmp_path / "mirror", "--once")
    for directory in ("out", "mirror"):
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path / directory, dtype=torch.bfloat16)
        assert_same_bits(bits(loaded), bits(model))
        assert (loaded.lm_head.weight is loaded.model.embed_tokens.weight) == tied
