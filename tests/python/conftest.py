"""Shared by the tests of the Python package."""

import os
import subprocess
import sys

import numpy as np
import pytest
import weightwire as ww


@pytest.fixture
def bucket(tmp_path):
    return tmp_path / "bucket"


def publish(bucket, *states, **options):
    """Publishes each state as a version of its own."""
    with ww.Publisher(bucket, **options) as publisher:
        return [publisher.publish(step, model=state) for step, state in enumerate(states)]


def small_state(seed=0):
    """Arrays of several types and shapes, an empty one and a scalar among them."""
    random = np.random.default_rng(seed)
    return {
        "embed.weight": random.standard_normal((50, 16)).astype(np.float32),
        "layer.bias": random.standard_normal(7).astype(np.float16),
        "layer.counts": random.integers(0, 1000, (3, 5)),
        "empty": np.zeros((0, 4), np.float32),
        "scale": np.array(float(seed)),
    }


def tiny_model():
    """A language model of a few thousand weights, with tied ones; the same each time."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        tie_word_embeddings=True,
    )
    return transformers.Qwen3ForCausalLM(config)


def assert_same(one, other):
    assert sorted(one) == sorted(other)
    for name, array in one.items():
        assert array.shape == other[name].shape, name
        assert array.dtype == other[name].dtype, name
        assert array.tobytes() == other[name].tobytes(), name


@pytest.fixture
def weightwire_command():
    """The command built from the same sources."""
    return os.environ["WEIGHTWIRE"]


def assert_same_tensors(one, other):
    """Of torch, bit for bit."""
    import torch

    assert sorted(one) == sorted(other)
    for name, tensor in one.items():
        assert tensor.dtype == other[name].dtype and tensor.shape == other[name].shape, name
        assert torch.equal(
            tensor.contiguous().view(-1).view(torch.uint8), other[name].contiguous().view(-1).view(torch.uint8)
        ), name


def run_script(folder, script):
    return subprocess.run([sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, timeout=120)


# For scripts: a fork that refuses these uses and ends as a process does.
REFUSED_IN_A_FORK = """
import os, sys
import numpy as np, weightwire as ww
def fork_that_refuses(*uses):
    child = os.fork()
    if child == 0:
        for use in uses:
            try:
                use()
            except ww.InvalidArgumentError as error:
                assert "a fork" in str(error)
            else:
                os._exit(1)
        sys.exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
"""
