"""Weights published as other numbers than they are trained in: the bits that torch gives, and no second copy."""

import numpy as np
import pytest
import weightwire as ww
from conftest import assert_same_tensors, publish

torch = pytest.importorskip("torch")


def any_floats(count: int) -> "torch.Tensor":
    """Bit patterns of every kind, NaN included."""
    generator = torch.Generator().manual_seed(1)
    return (
        torch.randint(-(2**31), 2**31, (count,), generator=generator, dtype=torch.int64)
        .to(torch.int32)
        .view(torch.float32)
    )


def weights(*shape: int) -> "torch.Tensor":
    return torch.randn(*shape, generator=torch.Generator().manual_seed(2)) * 0.02


def test_every_bit_pattern_is_rounded_as_torch_rounds(bucket):
    numbers = any_floats(300_000)
    model = {"all": numbers, "transposed": numbers.view(600, 500).t(), "sliced": numbers.view(300, 1000)[::2, 5:900:3]}
    publish(bucket, model, dtype=torch.bfloat16)
    loaded = ww.load(bucket, framework="torch")
    # In order first: torch gives the NaNs of a tensor that is not other bits, 0x7fc0 instead of 0xffff.
    assert_same_tensors(loaded, {name: tensor.contiguous().to(torch.bfloat16) for name, tensor in model.items()})


def test_only_what_changes_after_rounding_is_sent(bucket):
    master = weights(1000, 100)
    with ww.Publisher(bucket, {"w": master}, dtype=torch.bfloat16) as publisher:
        publisher.publish(0)
        before = master.to(torch.bfloat16)
        for step in range(1, 6):
            master += torch.randn(1000, 100, generator=torch.Generator().manual_seed(step)) * 1e-5
            ticket = publisher.publish(step)
            after = master.to(torch.bfloat16)
            assert ticket.status.changed_elements == int((before != after).sum())
            before = after
    assert_same_tensors(ww.load(bucket, framework="torch"), {"w": before})


def test_numpy_arrays_are_rounded_too(bucket):
    array = weights(64, 64).numpy()
    publish(bucket, {"w": array.T, "n": np.arange(3)}, dtype="bfloat16")
    loaded = ww.load(bucket, framework="torch")
    assert_same_tensors(loaded, {"w": torch.from_numpy(array.T).to(torch.bfloat16).contiguous(), "n": torch.arange(3)})


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
@pytest.mark.parametrize("to", ["float32", "float16", "bfloat16"])
def test_other_conversions_are_torch_s_own(bucket, dtype, to):
    tensor = weights(300, 70).to(getattr(torch, dtype))
    publish(bucket, {"w": tensor, "t": tensor.t()}, dtype=getattr(torch, to))
    loaded = ww.load(bucket, framework="torch")
    expected = tensor.to(getattr(torch, to))
    assert_same_tensors(loaded, {"w": expected, "t": expected.t().contiguous()})


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("to", ["float64", "float32", "float16", "bfloat16"])
def test_numpy_s_conversions_are_the_same(bucket, dtype, to):
    tensor = weights(300, 70).to(getattr(torch, dtype))
    tensor[0, 0], tensor[1, 1] = 65_000, -float("inf")
    array = tensor.numpy()
    publish(bucket, {"w": array, "t": array.T, "scalar": array[3, 4]}, dtype=to)
    expected = tensor.to(getattr(torch, to))
    loaded = ww.load(bucket, framework="torch")
    assert_same_tensors(loaded, {"w": expected, "t": expected.t().contiguous(), "scalar": expected[3, 4]})


def test_a_type_that_is_none_is_refused(bucket):
    with pytest.raises(ww.InvalidArgumentError, match="bfloat17"):
        publish(bucket, {"w": weights(3)}, dtype="bfloat17")


def test_a_tensor_that_cannot_be_read_leaves_the_chain_as_it_was(bucket):
    model = {"a": weights(500, 100).double(), "b": weights(500, 100).double()}
    with ww.Publisher(bucket, model, dtype=torch.bfloat16) as publisher:
        publisher.publish(0)
        model["a"] += 1e-3
        good = model["b"]
        model["b"] = torch.empty(500, 100, dtype=torch.float64, device="meta")
        with pytest.raises(ww.InvalidArgumentError, match="'b' is on the meta device"):
            publisher.publish(1)
        model["b"] = good
        publisher.publish(2)
    expected = {name: tensor.to(torch.bfloat16) for name, tensor in model.items()}
    assert_same_tensors(ww.load(bucket, framework="torch"), expected)


# --- fp8 ---


def fp8_by_torch(weight, power_of_two=False):
    """What the checkpoints on the Hub hold."""
    rows, columns = weight.shape
    padded = torch.zeros(-(-rows // 128) * 128, -(-columns // 128) * 128)
    padded[:rows, :columns] = weight.float()
    blocks = padded.view(padded.shape[0] // 128, 128, padded.shape[1] // 128, 128)
    largest = blocks.abs().amax(dim=(1, 3))
    scales = torch.where(largest == 0, torch.ones_like(largest), largest / 448)
    if power_of_two:
        scales = torch.where(largest == 0, scales, torch.exp2(torch.ceil(torch.log2(scales))))
    quantized = (blocks / scales[:, None, :, None]).to(torch.float8_e4m3fn).view(padded.shape)
    return quantized[:rows, :columns].contiguous(), scales


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("scales", ["float32", "power_of_two"])
def test_fp8_is_what_torch_computes(bucket, dtype, scales):
    weight = weights(300, 520).to(getattr(torch, dtype))
    weight[128:256, 128:256] = 0
    model = {"up_proj.weight": weight, "down_proj.weight": weight.t(), "norm.weight": weights(9)}
    with ww.Publisher(bucket, model, dtype=ww.Fp8(scales=scales)) as publisher:
        publisher.publish(0)
        weight *= 1.001
        publisher.publish(1)
    expected = {"norm.weight": model["norm.weight"].to(torch.bfloat16)}
    for name in ("up_proj.weight", "down_proj.weight"):
        expected[name], expected[f"{name}_scale_inv"] = fp8_by_torch(model[name], scales == "power_of_two")
    assert_same_tensors(ww.load(bucket, framework="torch"), expected)


def test_a_published_fp8_model_loads_with_from_pretrained(bucket, tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.Qwen3Config(
        vocab_size=64,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=64,
    )
    model = transformers.Qwen3ForCausalLM(config)
    with ww.Publisher(bucket, model, dtype=ww.Fp8()) as publisher:
        publisher.publish(0)
    with ww.Follower(bucket, tmp_path / "mirror") as follower:
        follower.poll().apply()
    written = transformers.AutoConfig.from_pretrained(tmp_path / "mirror")
    assert written.quantization_config["weight_block_size"] == [128, 128]
    assert "lm_head" in written.quantization_config["modules_to_not_convert"]
    loaded = ww.load(bucket, framework="torch")
    for name, parameter in model.state_dict().items():
        if name.endswith("_proj.weight"):
            quantized, scales = fp8_by_torch(parameter)
            assert_same_tensors({"w": loaded[name], "s": loaded[f"{name}_scale_inv"]}, {"w": quantized, "s": scales})
        elif name != "lm_head.weight" or not config.tie_word_embeddings:
            assert loaded[name].dtype == torch.bfloat16


# --- devices ---

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


@needs_gpu
@pytest.mark.parametrize("dtype", [None, torch.bfloat16, ww.Fp8(), ww.Fp8(scales="power_of_two")])
def test_a_gpu_s_weights_are_published_as_a_host_s(bucket, tmp_path, dtype):
    model = {"up_proj.weight": weights(700, 900), "t_proj.weight": weights(300, 400).t(), "norm.weight": weights(900)}
    publish(bucket, {name: tensor.cuda() for name, tensor in model.items()}, dtype=dtype)
    publish(tmp_path / "host", model, dtype=dtype)
    assert_same_tensors(ww.load(bucket, framework="torch"), ww.load(tmp_path / "host", framework="torch"))


@needs_gpu
@pytest.mark.parametrize("dtype", [None, torch.bfloat16, ww.Fp8()])
def test_what_the_caller_s_stream_still_writes_is_waited_for(bucket, dtype):
    weight = torch.zeros(1000, 1000, device="cuda")
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(500_000_000)  # cycles, in which a reader that does not wait would be done
        weight += 1
        publish(bucket, {"w_proj.weight": weight}, dtype=dtype)
    loaded = ww.load(bucket, framework="torch")
    assert bool((loaded["w_proj.weight"].float() == (448 if dtype == ww.Fp8() else 1)).all())


VIEWS = {
    "scalar": lambda t: t[0, 0, 0],
    "in order": lambda t: t,
    "vector": lambda t: t[:, 1, 2],
    "transposed": lambda t: t.transpose(0, 2),
    "last two": lambda t: t.transpose(1, 2),
    "sliced": lambda t: t[1::2, :, 3:],
    "flipped": lambda t: t.transpose(0, 1)[:, 2:5],
    "one row": lambda t: t[:, :, :1].transpose(0, 2),
    "expanded": lambda t: t[:, :1].expand(-1, 6, -1),
}


@pytest.mark.parametrize("name", VIEWS)
def test_any_piece_of_any_view_is_what_it_looks_like(name):
    from weightwire._conversion import TorchBatchReader

    whole = torch.arange(7 * 5 * 9, dtype=torch.float64).reshape(7, 5, 9)
    view = VIEWS[name](whole)
    pieces = TorchBatchReader(view, torch.float32)
    expected = view.contiguous().view(-1).float().numpy()

    def read(firsts, count):
        out = np.zeros(len(firsts) * count * 4, np.uint8)
        pieces(firsts, count, out)
        return out.view(np.float32)

    for first in range(len(expected)):
        for count in {1, 2, 9, 20, len(expected) - first}:
            if first + count <= len(expected):
                assert np.array_equal(read([first], count), expected[first : first + count])
    assert np.array_equal(read([0, len(expected) - 1], 1), expected[[0, -1]])
    # Nothing was copied beforehand.
    whole += 1
    assert np.array_equal(read([0], 1), expected[:1] + 1)


def test_pieces_of_a_tensor_are_the_same_as_the_core_s(bucket, tmp_path):
    """The way of tensors on a device, taken by one that is not."""
    from weightwire._conversion import TorchBatchReader
    from weightwire._fp8 import block_scales

    weight = weights(300, 520)
    for power_of_two in (False, True):
        scales = block_scales(weight, power_of_two=power_of_two)
        quantized, expected_scales = fp8_by_torch(weight, power_of_two)
        assert torch.equal(scales, expected_scales)
        out = np.zeros(3 * 1000, np.uint8)
        TorchBatchReader(weight, torch.float8_e4m3fn, scales)([0, 77_777, 155_000], 1000, out)
        flat = quantized.view(torch.uint8).reshape(-1).numpy()
        assert np.array_equal(out, np.concatenate([flat[first : first + 1000] for first in (0, 77_777, 155_000)]))
