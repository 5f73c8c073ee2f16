"""A model is examined once. Whatever changes in it later is found, and the newest weights are what is published."""

import gc
import weakref

import numpy as np
import pytest
import torch
import weightwire as ww
from torch import nn


def bits(tensor) -> tuple:
    array = tensor.detach().contiguous() if isinstance(tensor, torch.Tensor) else torch.from_numpy(np.array(tensor))
    array = array.resolve_conj().resolve_neg()
    return str(array.dtype), tuple(array.shape), array.reshape(-1).clone().view(torch.uint8).numpy().tobytes()


def published(bucket) -> dict:
    return {name: bits(tensor) for name, tensor in ww.load(bucket, framework="torch").items()}


class Run:
    """Publishes a model again and again, each time in the same way."""

    def __init__(self, bucket, model, background) -> None:
        self.bucket, self.model, self.background = str(bucket), model, background
        self.publisher = ww.Publisher(self.bucket, model, threads=2)

    def publish(self, **arguments):
        return self.publisher.publish(background=self.background, **arguments).result(30)

    def check(self, expected, **arguments) -> None:
        self.publish(**arguments)
        assert published(self.bucket) == {name: bits(tensor) for name, tensor in expected.items()}


@pytest.fixture(params=[False, True], ids=["waits", "background"])
def run_of(request, tmp_path):
    runs = []

    def make(model) -> Run:
        runs.append(Run(tmp_path / "bucket", model, request.param))
        runs[-1].publish()
        runs[-1].publish()  # from what was found out before
        return runs[-1]

    yield make
    for run in runs:
        run.publisher.close()


def tensors() -> dict:
    return {f"t{i}": torch.arange(12, dtype=torch.float32).reshape(3, 4) + i for i in range(5)}


def layers() -> nn.Module:
    model = nn.Module()
    model.layers = nn.ModuleList([nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)])
    return model


def change_in_place(model) -> None:
    model["t1"][1, 2] = 100


def replace(model) -> None:
    model["t2"] = model["t2"] + 7


def move(model) -> None:
    model["t2"].data = model["t2"].data + 7


def transpose(model) -> None:
    model["t2"].data = model["t2"].data.reshape(4, 3).t()


def reshape(model) -> None:
    model["t2"].data = model["t2"].data.reshape(2, 6)


def change_type(model) -> None:
    model["t3"].data = model["t3"].data.to(torch.bfloat16)


def see_as_integers(model) -> None:
    model["t3"] = model["t3"].view(torch.int32)


def see_negated(model) -> None:
    pair = torch.complex(torch.ones(3), torch.arange(3.0))
    model["t4"] = pair.conj().imag


def rename(model) -> None:
    model["u"] = model.pop("t0")


def add(model) -> None:
    model["t9"] = torch.ones(3)


def remove(model) -> None:
    del model["t4"]


def reorder(model) -> None:
    model["t0"] = model.pop("t0")


@pytest.mark.parametrize(
    "change",
    [
        change_in_place,
        replace,
        move,
        transpose,
        reshape,
        change_type,
        see_as_integers,
        see_negated,
        rename,
        add,
        remove,
        reorder,
    ],
)
def test_what_changes_in_a_mapping_is_published(run_of, change):
    model = tensors()
    run = run_of(model)
    change(model)
    run.check(model)
    model["t1"][0, 0] = -1
    run.check(model)


def test_what_changes_in_arrays_is_published(run_of):
    model = {f"a{i}": np.arange(12, dtype=np.float32).reshape(3, 4) + i for i in range(4)}
    run = run_of(model)
    model["a0"][2, 1] = 50
    run.check(model)
    model["a1"] = model["a1"] * 2
    run.check(model)
    model["a2"] = model["a2"].view(np.int32)
    run.check(model)
    model["a3"] = np.asfortranarray(model["a3"])
    run.check(model)
    model["a3"] = model["a3"].T
    run.check(model)


def test_a_tie_that_is_made_or_ends_is_published(run_of):
    model = tensors()
    run = run_of(model)
    model["t1"] = model["t0"]
    run.check(model)
    model["t0"][0, 0] = 9
    run.check(model)
    model["t1"] = model["t0"] + 1
    run.check(model)


def test_fresh_views_of_the_same_memory_are_what_they_show(run_of):
    model = layers()
    run = run_of(model.state_dict())
    with torch.no_grad():
        model.layers[0].weight[1, 1] = 3
    run.check(model.state_dict(), model=model.state_dict())
    model.layers[0].weight = nn.Parameter(torch.ones(4, 4))
    run.check(model.state_dict(), model=model.state_dict())


def change_a_parameter(model) -> None:
    with torch.no_grad():
        model.layers[2].bias[1] = 5


def replace_a_parameter(model) -> None:
    model.layers[0].weight = nn.Parameter(torch.full((4, 4), 2.0))


def move_a_parameter(model) -> None:
    model.layers[0].weight.data = torch.full((4, 4), 3.0)


def count_a_batch(model) -> None:
    model.layers[1].num_batches_tracked += 1
    model.layers[1].running_mean[0] = 4


def replace_a_layer(model) -> None:
    model.layers[2] = nn.Linear(4, 2)


def add_a_layer(model) -> None:
    model.layers.append(nn.Linear(4, 4))


def drop_a_bias(model) -> None:
    model.layers[0].bias = None


def add_a_buffer(model) -> None:
    model.layers[0].register_buffer("mask", torch.ones(4))


def stop_saving_a_buffer(model) -> None:
    model.layers[1]._non_persistent_buffers_set.add("running_mean")


def tie_weights(model) -> None:
    model.layers[2].weight = model.layers[0].weight


def convert(model) -> None:
    model.to(torch.bfloat16)


def hook(model) -> None:
    def drop(module, state, prefix, *_):
        state.pop(prefix + "bias")

    model.layers[0]._register_state_dict_hook(drop)


def override(model) -> None:
    state_dict = model.layers[0].state_dict

    def fewer(*args, prefix="", **kwargs):
        destination = state_dict(*args, prefix=prefix, **kwargs)
        del destination[prefix + "bias"]
        return destination

    model.layers[0].state_dict = fewer


def ignore_a_name(model) -> None:
    model._keys_to_ignore_on_save = [r"layers\.0\.bias"]


@pytest.mark.parametrize(
    "change",
    [
        change_a_parameter,
        replace_a_parameter,
        move_a_parameter,
        count_a_batch,
        replace_a_layer,
        add_a_layer,
        drop_a_bias,
        add_a_buffer,
        stop_saving_a_buffer,
        tie_weights,
        convert,
        hook,
        override,
        ignore_a_name,
    ],
)
def test_what_changes_in_a_module_is_published(run_of, change):
    model = layers()
    run = run_of(model)

    def state():
        ignored = getattr(model, "_keys_to_ignore_on_save", [])
        return {name: tensor for name, tensor in model.state_dict().items() if name.replace(".", r"\.") not in ignored}

    change(model)
    run.check(state())
    with torch.no_grad():
        model.layers[0].weight[0, 0] = -1
    run.check(state())


def test_another_model_of_the_same_structure_is_read(run_of):
    model, other = layers(), layers()
    run = run_of(model)
    run.check(other.state_dict(), model=other)
    run.check(model.state_dict())


def test_rounded_weights_are_those_of_the_call(tmp_path):
    model = tensors()
    with ww.Publisher(tmp_path, model, dtype=torch.bfloat16) as publisher:
        for turn in range(3):
            model["t0"][0, 0] = 1.0 + turn
            publisher.publish().result(30)
            expected = {name: bits(tensor.to(torch.bfloat16)) for name, tensor in model.items()}
            assert published(str(tmp_path)) == expected
            model["t1"].data = torch.full((3, 4), float(turn))


@pytest.mark.parametrize("make", [lambda: np.ones(5000, np.float32), lambda: torch.ones(5000)], ids=["numpy", "torch"])
def test_nothing_keeps_the_memory_of_weights_between_calls(run_of, make):
    class Tracked(dict):
        pass

    model = Tracked(w=make(), v=make())
    run = run_of({"w": model["w"], "v": model["v"]})
    del run.publisher._arguments  # it keeps the model it was given; here it is given one by one
    for _ in range(2):
        known = {"w": make(), "v": make()}
        dead = [weakref.ref(array) for array in known.values()]
        if isinstance(known["w"], torch.Tensor):
            dead.append(weakref.ref(known["w"].untyped_storage()))
        run.publish(model=known)
        run.publish(model=known)
        del known
        gc.collect()
        assert [ref() for ref in dead] == [None] * len(dead)


def test_a_write_during_a_later_read_is_noticed(tmp_path):
    model = {"w": torch.zeros(3_000_000, requires_grad=True)}
    with ww.Publisher(tmp_path, model, threads=1) as publisher:
        publisher.publish(background=True).result(30)
        ticket = publisher.publish(background=True)
        with torch.no_grad():
            model["w"].add_(1)
        with pytest.raises(ww.WeightwireError, match="'w' was changed while it was read"):
            ticket.result(30)
        publisher.publish(background=True).result(30)
    assert published(str(tmp_path)) == {"w": bits(model["w"])}


def test_small_tensors_of_a_mapping_may_change_during_a_later_read(tmp_path):
    model = {"large": torch.zeros(3_000_000), "small": torch.zeros(10)}
    with ww.Publisher(tmp_path, model, threads=1) as publisher:
        for turn in range(3):
            model["small"].fill_(turn)
            ticket = publisher.publish(background=True)
            model["small"].fill_(-1)
            ticket.result(30)
            assert ww.load(tmp_path)["small"].tolist() == [turn] * 10
