"""A worker's parameter map: comparisons, refusals, writes and reloads, on a small model without an engine."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import weightwire as ww
from weightwire.integrations.vllm import _parameter_map as parameter_map
from weightwire.integrations.vllm._mirror import HeldVersion, check_files, read_held, write_change
from weightwire.integrations.vllm._parameter_map import ParameterMap, UpdateRefused, WeightsDiffer


class UnquantizedLinearMethod:
    """By this name a module may be loaded again."""

    packed = None


class Experts(UnquantizedLinearMethod):
    """And by this not."""


class Part(torch.nn.Module):
    def __init__(self, method=None):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(4, 4))
        if method is not None:
            self.quant_method = method()


class Model(torch.nn.Module):
    """`a` and `b` are for tensors of their own, `shared` for one that goes to `b` too."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.Parameter(torch.zeros(4))
        self.a, self.b, self.shared, self.experts = (
            Part(UnquantizedLinearMethod),
            Part(UnquantizedLinearMethod),
            Part(UnquantizedLinearMethod),
            Part(Experts),
        )

    def load_weights(self, weights):
        for name, tensor in weights:
            if name == "norm":
                self.norm.data.copy_(tensor)
            elif name == "b":
                self.b.weight.data[:2].copy_(tensor)
            elif name == "shared":
                self.b.weight.data[2:].copy_(tensor[:2])
                self.shared.weight.data.copy_(tensor)
            elif name == "elsewhere":
                self.elsewhere = tensor.clone()
            else:
                self.get_submodule(name).weight.data.copy_(tensor)


SHAPES = {"norm": (4,), "a": (4, 4), "b": (2, 4), "shared": (4, 4), "experts": (4, 4)}


@pytest.fixture
def made(bucket, tmp_path, monkeypatch):
    """A run, its mirror, and a model that was loaded from version 0."""

    def shadow(_):
        with torch.device("meta"):
            return Model()

    monkeypatch.setattr(parameter_map, "shadow_model", shadow)

    def make(**more):
        random = np.random.default_rng(0)
        shapes = {**SHAPES, **more}
        state = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
        publisher = ww.Publisher(bucket)
        publisher.publish(0, model=state).result(60)
        follower = ww.Follower(bucket, tmp_path / "mirror")
        follower.poll().apply()
        model = Model()
        model.load_weights((name, torch.from_numpy(array.copy())) for name, array in state.items())
        return SimpleNamespace(
            state=state, publisher=publisher, follower=follower, mirror=tmp_path / "mirror", model=model
        )

    return make


def make_map(made):
    with torch.inference_mode():
        return ParameterMap(made.model, None, made.mirror)


def prepare_next(made, parameters, tmp_path, *names):
    """The next version, of which these tensors differ."""
    for name in names:
        made.state[name] = made.state[name] + 1
    made.publisher.publish(made.follower.version + 1, model=made.state).result(60)
    update = made.follower.poll()
    write_change(tmp_path / "change", update.changes, update.version)
    with torch.inference_mode():
        return update, parameters.prepare_change(tmp_path / "change", update.version)


def test_plain_parameters_are_written_and_read_back(made, tmp_path):
    made = made()
    parameters = make_map(made)
    nothing = {key: [] for key in ("refused", "stale", "unread", "unproven")}
    assert parameters.summary == {"in_place": 5, "by_reload": 0, **nothing}
    update, prepared = prepare_next(made, parameters, tmp_path, "norm", "shared")
    update.apply()
    assert parameters.compare()[1] == "norm"  # the mirror is ahead
    assert parameters.commit(prepared)
    assert parameters.compare() == (4 + 4 * 16, None)
    # What does not read back is noticed.
    update, prepared = prepare_next(made, parameters, tmp_path, "a")
    prepared.writes[0].write = lambda: None
    assert not parameters.commit(prepared)


def test_other_weights_than_the_change_starts_from_are_not_written_to(made, tmp_path):
    made = made()
    parameters = make_map(made)
    made.model.a.weight.data[1, 1] += 1
    with pytest.raises(WeightsDiffer, match="does not hold what the change starts from"):
        prepare_next(made, parameters, tmp_path, "a")


def test_parameters_that_differ_are_stale_only_if_they_can_be_reloaded(made):
    made = made()
    made.model.a.weight.data += 1
    made.model.experts.weight.data = made.model.experts.weight.data.flip(0)
    summary = make_map(made).summary
    assert summary["stale"] == ["a.weight"]
    assert summary["unproven"] == ["experts.weight"]
    assert "experts holds its weights in another order" in summary["refused"][0]


def test_a_constant_parameter_is_refused_because_its_order_is_unknown(made):
    """A kernel may keep its weights in any order, which shows by their values; not if there is only one."""
    made = made()
    experts = made.model.experts
    experts.quant_method.kernel = lambda: experts
    assert make_map(made).summary["in_place"] == 5
    made.state["experts"] = np.zeros((4, 4), np.float32)
    made.publisher.publish(1, model=made.state).result(60)
    made.follower.poll().apply()
    made.model.experts.weight.data.zero_()
    assert "their order cannot be told" in make_map(made).summary["refused"][0]


def test_other_modules_catch_up_while_a_refused_one_does_not_differ(made):
    made = made()
    made.model.experts.quant_method.packed = made.model.experts.weight.data.clone()
    parameters = make_map(made)
    assert parameters.summary["unproven"] == [] and len(parameters.summary["refused"]) == 1
    for name, caught in (("norm", True), ("experts", False)):
        made.state[name] = made.state[name] + 1
        made.publisher.publish(made.follower.version + 1, model=made.state).result(60)
        made.follower.poll().apply()
        with torch.inference_mode():
            if caught:
                prepared = parameters.prepare_mirror(read_held(made.mirror))
                assert (prepared.elements, prepared.reload) == (4, [])
                assert parameters.commit(prepared)
                continue
            with pytest.raises(UpdateRefused, match="restart the server"):
                parameters.prepare_mirror(read_held(made.mirror))


def test_a_reload_includes_all_modules_of_its_tensors(made, tmp_path):
    made = made()
    made.model.b.quant_method.packed = made.model.b.weight.data.clone()
    made.model.shared.quant_method.packed = made.model.shared.weight.data.clone()
    _, prepared = prepare_next(made, make_map(made), tmp_path, "b")
    assert sorted(prepared.reload) == ["b", "shared"]


def test_a_tensor_that_goes_elsewhere_is_refused(made, tmp_path):
    made = made(elsewhere=(3,))
    parameters = make_map(made)
    assert parameters.summary["unproven"] == ["elsewhere"]
    parameters.check_can_change(["a", "norm"])
    with pytest.raises(UpdateRefused, match="'elsewhere' goes where it cannot be followed"):
        parameters.check_can_change(["a", "elsewhere"])
    with pytest.raises(UpdateRefused, match="'elsewhere' goes where it cannot be followed"):
        prepare_next(made, parameters, tmp_path, "elsewhere")
    with torch.inference_mode(), pytest.raises(UpdateRefused, match="restart the server"):
        parameters.prepare_mirror(read_held(made.mirror))


def test_if_nothing_can_be_learned_everything_is_refused(made, tmp_path, monkeypatch):
    made = made()

    def shadow(_):
        return Model().to("meta").requires_grad_(torch.empty(1, device="meta").item() > 0)

    monkeypatch.setattr(parameter_map, "shadow_model", shadow)
    parameters = make_map(made)
    summary = parameters.summary
    assert (summary["in_place"], summary["by_reload"]) == (0, 0)
    assert "could not be learned" in summary["refused"][0]
    assert summary["unproven"] == sorted(SHAPES)
    with pytest.raises(UpdateRefused, match="could not be learned"):
        prepare_next(made, parameters, tmp_path, "a")


def test_frozen_weights_are_refused(made, tmp_path):
    made = made()
    compilation = SimpleNamespace(mode=3, inductor_compile_config={"max_autotune": True})
    config = SimpleNamespace(compilation_config=compilation, device_config=SimpleNamespace(device_type="cpu"))
    with torch.inference_mode():
        parameters = ParameterMap(made.model, config, made.mirror)
    assert parameters.summary["in_place"] == 0
    with pytest.raises(UpdateRefused, match="freeze"):
        prepare_next(made, parameters, tmp_path, "a")
    config.device_config.device_type = "cuda"
    with torch.inference_mode():
        assert ParameterMap(made.model, config, made.mirror).summary["in_place"] == 5


def test_a_mirror_that_holds_something_else_is_not_compared_with(made):
    made = made()
    parameters = make_map(made)
    now = read_held(made.mirror)
    for other in (HeldVersion(now.version + 1, now.digest), HeldVersion(now.version, "0" * 64)):
        with torch.inference_mode(), pytest.raises(UpdateRefused, match="does not hold version"):
            parameters.prepare_mirror(other)


def test_a_damaged_mirror_is_noticed_without_its_bucket(made, bucket):
    made = made()
    made.follower.close()
    made.publisher.close()
    bucket.rename(bucket.with_name("away"))
    check_files(made.mirror)
    (file,) = made.mirror.glob("*.safetensors")
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(data)
    with pytest.raises(ww.CorruptError, match="digest of version 0"):
        check_files(made.mirror)
