"""Models with adapters, with the real PEFT: its save_pretrained and merge_and_unload are the judges."""

import copy

import pytest
import weightwire as ww
from conftest import assert_same_tensors, publish, tiny_model

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")


def adapted_model(**options):
    torch.manual_seed(0)
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], **options)
    model = peft.get_peft_model(tiny_model(), config)
    train(model)
    return model


def train(model):
    with torch.no_grad():
        for _name, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter += torch.randn(parameter.shape) * 0.02


def saved(model, directory):
    from safetensors.torch import load_file

    model.save_pretrained(directory)
    return load_file(directory / "adapter_model.safetensors")


def test_adapters_are_published_as_peft_saves_them(bucket, tmp_path):
    model = adapted_model()
    with ww.Publisher(bucket, model) as publisher:
        publisher.publish(0)
        train(model)
        publisher.publish(1)
    assert_same_tensors(ww.load(bucket, framework="torch"), saved(model, tmp_path / "saved"))
    with ww.Follower(bucket, tmp_path / "mirror") as follower:
        follower.poll().apply()
    again = peft.PeftModel.from_pretrained(tiny_model(), tmp_path / "mirror")
    assert_same_tensors(peft.get_peft_model_state_dict(again), saved(model, tmp_path / "saved"))


@pytest.mark.parametrize("options", [{}, {"modules_to_save": ["lm_head"]}, {"use_rslora": True}])
def test_merged_weights_are_what_merge_and_unload_leaves(bucket, options):
    model = adapted_model(**options)
    with ww.Publisher(bucket, model, lora="merged", dtype=torch.bfloat16) as publisher:
        publisher.publish(0)
        train(model)
        ticket = publisher.publish(1)
    assert ticket.status.changed_elements > 0
    merged = copy.deepcopy(model).merge_and_unload()
    expected = {name: tensor.to(torch.bfloat16) for name, tensor in merged.state_dict().items()}
    assert_same_tensors(ww.load(bucket, framework="torch"), expected)
    # The model goes on training: nothing was merged in it.
    assert any("lora_A" in name for name, _ in model.named_parameters())


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"use_dora": True}, "DoRA"),
        ({"lora_bias": True}, "lora_bias"),
        ({"target_parameters": ["mlp.gate_proj.weight"]}, "target_parameters"),
    ],
)
def test_what_cannot_be_merged_exactly_is_refused(bucket, options, why):
    model = adapted_model(**options)
    with pytest.raises(ww.InvalidArgumentError, match=why):
        publish(bucket, model, lora="merged")
    assert not bucket.exists() or not list(bucket.glob("versions/*"))


def test_merged_weights_are_not_published_as_fp8_under_a_configuration_that_says_so(bucket):
    with pytest.raises(ww.InvalidArgumentError, match="merge the adapters first"):
        publish(bucket, adapted_model(), lora="merged", dtype=ww.Fp8())
