"""Torch modules: names and ties as save_pretrained has them, and types as they are asked for."""

import json
import shutil
import tempfile

import pytest
import weightwire as ww
from conftest import assert_same_tensors, publish, tiny_model

torch = pytest.importorskip("torch")


def test_a_module_is_published_as_its_state_dict(bucket):
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 2)).to(
        torch.bfloat16
    )
    with ww.Publisher(bucket, model) as publisher:
        publisher.publish(0)
        with torch.no_grad():
            model[0].weight[3, 4] += 1
        ticket = publisher.publish(1)
    assert ticket.status.changed_elements == 1
    assert_same_tensors(ww.load(bucket, framework="torch"), model.state_dict())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "int64", "bool", "uint8"])
def test_torch_types_cross_without_a_change(bucket, dtype):
    tensor = torch.arange(-60, 60).reshape(10, 12).to(getattr(torch, dtype))
    publish(bucket, {"w": tensor, "views": tensor.t(), "scalar": tensor[1, 2]})
    loaded = ww.load(bucket, framework="torch")
    assert_same_tensors(loaded, {"w": tensor, "views": tensor.t(), "scalar": tensor[1, 2]})


def test_fp32_parameters_are_rounded_as_torch_rounds(bucket):
    torch.manual_seed(0)
    bits = torch.randint(-(2**31), 2**31 - 1, (100_000,), dtype=torch.int64).to(torch.int32)
    edges = torch.tensor([0x3F808000, 0x3F818000, 0x7F7FFFFF, 1, 0x807FFFFF - 2**32, 0x7F800000], dtype=torch.int64).to(
        torch.int32
    )
    numbers = torch.cat([bits, edges]).view(torch.float32)
    numbers = numbers[~numbers.isnan()]
    model = {"w": numbers, "steps": torch.arange(3)}
    publish(bucket, model, dtype=torch.bfloat16)
    assert_same_tensors(ww.load(bucket, framework="torch"), {"w": numbers.to(torch.bfloat16), "steps": torch.arange(3)})


def test_tied_weights_are_sent_once_and_come_back_under_both_names(bucket):
    class Tied(torch.nn.Module):
        _tied_weights_keys = ("lm_head.weight",)

        def __init__(self):
            super().__init__()
            self.embed = torch.nn.Embedding(10, 4)
            self.lm_head = torch.nn.Linear(4, 10, bias=False)
            self.lm_head.weight = self.embed.weight

    model = Tied()
    publish(bucket, model)
    loaded = ww.load(bucket, framework="torch")
    assert loaded["lm_head.weight"] is loaded["embed.weight"]
    anchor = next((bucket / "anchors").rglob("*.safetensors"))
    from safetensors import safe_open

    with safe_open(anchor, "np") as file:
        assert list(file.keys()) == ["embed.weight"]
    target = {name: tensor.clone().zero_() for name, tensor in model.state_dict().items()}
    with ww.Follower(bucket, target) as follower:
        follower.poll().apply()
    assert_same_tensors(target, model.state_dict())


def test_a_model_is_followed_in_place(bucket):
    torch.manual_seed(0)
    trainer = torch.nn.Linear(32, 32).to(torch.bfloat16)
    server = torch.nn.Linear(32, 32).to(torch.bfloat16)
    weight = server.weight.data_ptr()
    optimizer = torch.optim.SGD(trainer.parameters(), lr=1e-2)
    with ww.Publisher(bucket, trainer) as publisher:
        publisher.publish(0).result()
        with ww.Follower(bucket, server.state_dict()) as follower:
            for step in range(1, 6):
                optimizer.zero_grad()
                trainer(torch.randn(4, 32, dtype=torch.bfloat16)).square().sum().backward()
                optimizer.step()
                publisher.publish(step).result()
                follower.poll().apply()
                assert_same_tensors(dict(server.state_dict()), dict(trainer.state_dict()))
    assert server.weight.data_ptr() == weight


def test_wrapped_modules_are_published_under_their_own_names(bucket):
    model = torch.nn.Linear(3, 3)
    publish(bucket, torch.nn.DataParallel(model))
    assert sorted(ww.load(bucket)) == ["bias", "weight"]


def test_views_whose_memory_holds_other_numbers_are_published_as_they_look(bucket):
    numbers = torch.randn(4, 6, dtype=torch.complex64)
    views = {"plain": numbers, "conjugate": numbers.conj(), "negative": numbers.conj().imag}
    publish(bucket, views)
    expected = {"plain": numbers, "conjugate": numbers.conj().resolve_conj(), "negative": -numbers.imag}
    assert_same_tensors(ww.load(bucket, framework="torch"), expected)


def test_a_sparse_tensor_is_refused(bucket):
    sparse = torch.eye(4).to_sparse()
    with pytest.raises(ww.InvalidArgumentError, match=r"'w' is a torch.sparse_coo tensor.*make it dense"):
        publish(bucket, {"w": sparse})
    publish(bucket, {"w": torch.eye(4)})
    with pytest.raises(ww.InvalidArgumentError, match=r"'w' is a torch.sparse_coo tensor"):
        ww.Follower(bucket, {"w": sparse})


def test_a_tensor_without_data_is_refused(bucket):
    with pytest.raises(ww.InvalidArgumentError, match="meta device"):
        publish(bucket, {"w": torch.empty(3, device="meta")})


def test_configuration_and_tokenizer_go_with_every_anchor(bucket, tmp_path):
    transformers = pytest.importorskip("transformers")
    model = tiny_model().to(torch.bfloat16)
    with ww.Publisher(bucket, model) as publisher:
        publisher.publish(0)
    (manifest,) = (bucket / "anchors").rglob("anchor.json")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(manifest.parent, dtype=torch.bfloat16)
    assert_same_tensors(dict(loaded.state_dict()), dict(model.state_dict()))
    assert sorted(ww.load(bucket, framework="torch")) == sorted(model.state_dict())


def published_config(bucket, model, **options):
    with ww.Publisher(bucket, model, **options) as publisher:
        publisher.publish(0)
    (config,) = (bucket / "anchors").rglob("config.json")
    return json.loads(config.read_text())


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_the_configuration_is_what_save_pretrained_writes(bucket, tmp_path, dtype):
    pytest.importorskip("transformers")
    model = tiny_model()
    before = model.config.to_dict()
    config = published_config(bucket, model, dtype=dtype)
    assert model.config.to_dict() == before
    tiny_model().to(dtype or model.dtype).save_pretrained(tmp_path / "saved")
    assert config == json.loads((tmp_path / "saved" / "config.json").read_text())


def test_the_configuration_of_fp8_says_what_the_rest_is(bucket):
    pytest.importorskip("transformers")
    config = published_config(bucket, tiny_model(), dtype=ww.Fp8())
    assert (config["dtype"], config["architectures"]) == ("bfloat16", ["Qwen3ForCausalLM"])
    assert config["quantization_config"]["quant_method"] == "fp8"


class Experts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_up_proj = torch.nn.Parameter(torch.ones(4, 128, 128))


def test_experts_in_one_tensor_are_not_left_unquantized_under_a_configuration_that_says_fp8(bucket):
    pytest.importorskip("transformers")
    model = tiny_model()
    model.model.layers[0].mlp.experts = Experts()
    with pytest.raises(ww.InvalidArgumentError, match=r"experts\.gate_up_proj.*several matrices"):
        publish(bucket, model, dtype=ww.Fp8())
    config = published_config(bucket, model, dtype=ww.Fp8(ignore=["lm_head", "experts"]))
    assert "model.layers.0.mlp.experts" in config["quantization_config"]["modules_to_not_convert"]


def test_a_mapping_of_a_known_model_is_quantized_by_its_layers(bucket):
    model = torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.LayerNorm(128))
    with ww.Publisher(bucket, model, dtype=ww.Fp8()) as publisher:
        publisher.publish(0, model=dict(model.state_dict()))
    assert "0.weight_scale_inv" in ww.load(bucket)


def test_what_a_model_wants_in_full_precision_is_not_rounded(bucket):
    pytest.importorskip("transformers")
    model = tiny_model()
    model._keep_in_fp32_modules_strict = ["e_score_correction_bias"]
    bias = torch.full((8,), 5.01)
    model.model.layers[0].mlp.register_buffer("e_score_correction_bias", bias)
    with ww.Publisher(bucket, model, dtype=torch.bfloat16) as publisher:
        publisher.publish(0)
        publisher.publish(1, model=dict(model.state_dict()))
    loaded = ww.load(bucket, framework="torch")
    assert torch.equal(loaded["model.layers.0.mlp.e_score_correction_bias"], bias)
    assert loaded["model.layers.0.mlp.up_proj.weight"].dtype == torch.bfloat16


def test_activation_checkpointing_does_not_change_what_is_quantized(bucket):
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    model = torch.nn.Sequential(checkpoint_wrapper(torch.nn.Sequential(torch.nn.Linear(128, 128))))
    publish(bucket, model, dtype=ww.Fp8())
    assert sorted(ww.load(bucket)) == ["0.0.bias", "0.0.weight", "0.0.weight_scale_inv"]


def test_what_anchors_carry_outlives_who_tidies_up_temporary_files(bucket, tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    model = tiny_model()
    with ww.Publisher(bucket, model, anchor_every=1) as publisher:
        publisher.publish(0).result()
        publisher.flush()
        (carried,) = tmp_path.glob("weightwire-*")
        shutil.rmtree(carried)
        with torch.no_grad():
            model.model.norm.weight += 1
        publisher.publish(1)
    assert len(list((bucket / "anchors").rglob("config.json"))) == 2


def names_in_the_anchor(bucket):
    from safetensors import safe_open

    with safe_open(next((bucket / "anchors").rglob("*.safetensors")), "np") as file:
        return sorted(file.keys())


def saved_names(model, directory):
    from safetensors import safe_open

    model.save_pretrained(directory)
    with safe_open(directory / "model.safetensors", "np") as file:
        return sorted(file.keys())


def tied_models():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 32}
    t5 = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2, "vocab_size": 32}
    return {
        "qwen": tiny_model(),
        "neox": transformers.GPTNeoXForCausalLM(
            transformers.GPTNeoXConfig(**sizes, intermediate_size=16, tie_word_embeddings=True)
        ),
        "gpt2": transformers.GPT2LMHeadModel(transformers.GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=32)),
        "t5": transformers.T5ForConditionalGeneration(transformers.T5Config(**t5)),
    }


@pytest.mark.parametrize("name", ["qwen", "neox", "gpt2", "t5"])
def test_a_state_dict_of_tied_weights_has_the_names_of_save_pretrained(bucket, tmp_path, name):
    model = tied_models()[name]
    publish(bucket, model.state_dict())
    assert names_in_the_anchor(bucket) == saved_names(model, tmp_path / "saved")


def test_compiled_layers_are_published_and_followed_under_their_own_names(bucket):
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    names = sorted(model.state_dict())
    model[1] = torch.compile(model[1])
    compiled = torch.compile(model)
    assert any("_orig_mod" in name for name in model.state_dict())
    for given in (model, compiled, compiled.state_dict()):
        publish(bucket, given)
        assert sorted(ww.load(bucket)) == names
    target = {name: tensor.clone().zero_() for name, tensor in compiled.state_dict().items()}
    with ww.Follower(bucket, target) as follower:
        follower.poll().apply()
    assert_same_tensors(target, compiled.state_dict())


def test_a_model_that_zero_has_partitioned_is_refused(bucket):
    model = torch.nn.Linear(3, 3)
    model.weight.ds_shape = model.weight.shape  # as DeepSpeed marks what it has taken away
    with pytest.raises(ww.InvalidArgumentError, match="ZeRO-3"):
        publish(bucket, model)
