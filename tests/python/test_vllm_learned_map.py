"""Where a checkpoint's elements are in an engine's parameters, learned from a loader; without an engine."""

import functools

import numpy as np
import pytest
import torch
from weightwire.integrations.vllm._derived import Derived, derived_state
from weightwire.integrations.vllm._learned_map import learn, make_box_mapping


class Fused(torch.nn.Module):
    """Parameters as engines have them, and a loader for one rank of two."""

    RANK, RANKS = 1, 2

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(8, 6)
        self.head = torch.nn.Linear(6, 8, bias=False)
        self.head.weight = self.embed.weight
        self.qkv = torch.nn.Parameter(torch.zeros(4 + 2 + 2, 6))
        self.out = torch.nn.Parameter(torch.zeros(6, 4))
        self.experts = torch.nn.Parameter(torch.zeros(2, 6, 3))
        self.scaled = torch.nn.Parameter(torch.zeros(3))

    def load_weights(self, weights):
        for name, tensor in weights:
            if name == "embed":
                rows = tensor.shape[0]
                self.embed.weight.data[:rows].copy_(tensor)
                self.embed.weight.data[rows:].fill_(0)
            elif name in "qkv":
                size = {"q": 4, "k": 2, "v": 2}[name]
                first = {"q": 0, "k": 4, "v": 6}[name]
                part = tensor.narrow(0, self.RANK * size, size)
                self.qkv.data.narrow(0, first, size).copy_(part)
            elif name == "out":
                self.out.data.copy_(tensor.narrow(1, self.RANK * 4, 4))
            elif name == "experts":  # [experts, in, out] there, transposed here
                for expert in range(2):
                    self.experts.data[expert].copy_(tensor[expert].t())
            elif name == "scaled":
                self.scaled.data.copy_(tensor * 0.5)


CHECKPOINT = {
    "embed": (7, 6),
    "q": (8, 6),
    "k": (4, 6),
    "v": (4, 6),
    "out": (6, 8),
    "experts": (2, 3, 6),
    "scaled": (3,),
    "unused": (5,),
}


def learned():
    with torch.device("meta"):
        shadow = Fused()
    return learn(shadow, {name: (torch.float32, shape) for name, shape in CHECKPOINT.items()})


def test_the_map_learned_says_what_the_loader_does():
    random = np.random.default_rng(0)
    checkpoint = {
        name: torch.from_numpy(random.standard_normal(shape).astype(np.float32)) for name, shape in CHECKPOINT.items()
    }
    model = Fused()
    model.load_weights(checkpoint.items())
    parameters = dict(model.named_parameters())
    seen = {name: np.zeros(parameter.numel(), int) for name, parameter in parameters.items()}
    for box in learned().boxes:
        source = checkpoint[box.tensor].view(-1)
        target = parameters[box.parameter].data.view(-1)
        assert torch.equal(box.source(source), box.target(target))
        chosen, positions = box.locate(np.arange(source.numel()))
        assert torch.equal(source[chosen], target[positions])
        assert len(chosen) == np.prod(box.sizes)
        np.add.at(seen[box.parameter], positions, 1)
    assert all((seen[name] == 1).all() for name in ("qkv", "out", "experts"))
    assert seen["embed.weight"].tolist() == [1] * 42 + [0] * 6  # the padding has no source


def test_a_computed_parameter_is_not_taken_for_a_copy():
    result = learned()
    assert result.opaque == {"scaled"}
    assert "scaled" not in {box.parameter for box in result.boxes}


def test_weights_that_are_shared_have_one_name():
    assert {box.parameter for box in learned().boxes if box.tensor == "embed"} == {"embed.weight"}


def test_the_real_weights_are_not_touched():
    model = Fused()
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    learned()
    assert all(torch.equal(before[name], parameter) for name, parameter in model.named_parameters())


@pytest.mark.parametrize("seed", range(30))
def test_positions_are_found_in_any_slice(seed):
    random = np.random.default_rng(seed)
    shape = tuple(random.integers(1, 6, random.integers(1, 4)))
    whole = torch.arange(int(np.prod(shape))).view(shape)
    view = whole
    for dim, size in enumerate(shape):
        first = int(random.integers(0, size))
        view = view.narrow(dim, first, int(random.integers(1, size - first + 1)))
    if view.dim() > 1 and random.random() < 0.5:
        view = view.transpose(0, 1)
    target = torch.full(tuple(size + 1 for size in view.shape), -1)
    box = target[tuple(slice(1, None) for _ in view.shape)]
    box.copy_(view)
    box = make_box_mapping(
        "a", "b", tuple(view.shape), (view.storage_offset(), view.stride()), (box.storage_offset(), box.stride())
    )
    chosen, positions = box.locate(np.arange(whole.numel()))
    assert chosen.tolist() == sorted(view.flatten().tolist())
    assert target.view(-1)[positions].tolist() == chosen.tolist()
    # And of some of them, in the type that a change has them in.
    some = np.flatnonzero(random.random(whole.numel()) < 0.5)
    inside = set(view.flatten().tolist())
    for dtype in (np.int64, np.uint32):
        chosen, positions = box.locate(some.astype(dtype))
        assert some[chosen].tolist() == [position for position in some.tolist() if position in inside]
        assert target.view(-1)[positions].tolist() == some[chosen].tolist()


def test_views_that_overlap_have_no_mapping():
    assert make_box_mapping("a", "b", (3, 4), (0, (0, 1)), (0, (4, 1))) is None
    assert make_box_mapping("a", "b", (3, 4), (0, (2, 1)), (0, (4, 1))) is None


def test_modules_with_derived_state_are_found():
    model, before = Fused(), Fused()
    assert derived_state(model, before) == Derived(set(), set())
    packed = model.head.weight.detach().clone()
    model.head.forward_with = lambda x: x
    assert derived_state(model, before) == Derived(set(), set())
    model.head.forward_with = lambda x: x @ packed
    assert derived_state(model, before).state == {"head"}
    model.products = [torch.ones(3)]
    assert derived_state(model, before).state == {"", "embed", "head"}


def test_the_compilers_attributes_are_not_derived_state():
    model, before = Fused(), Fused()
    model.embed.aot_compiled_fn = object()
    model.embed._compiled_bytecode = (lambda: 0).__code__
    model.head._compiled_call_impl = object()
    assert derived_state(model, before) == Derived(set(), set())


class Kernel:
    """What a method gets after loading, as for experts."""

    def __init__(self, *holds):
        self.config = {"tiles": (16, 32), "run": self.__call__}
        self.holds = holds

    def __call__(self):
        pass


class Method:
    kernel = None

    def __init__(self):
        self.kernel = None


class Owner(Kernel):
    """Whoever must clean up may hold what cannot be seen."""

    def __del__(self):
        pass


def closing_over(value):
    return lambda: value


@pytest.mark.parametrize(
    ("make", "is_derived"),
    [
        (lambda model: Kernel(), False),
        (lambda model: Kernel(model, [model.qkv.data[2:]], functools.partial(Kernel, model.out)), False),
        (lambda model: Kernel({"packed": [model.qkv.detach().clone()]}), True),
        (lambda model: Kernel(closing_over(model.out.detach().clone())), True),
        (lambda model: Kernel(Owner()), True),
        (lambda model: Kernel(object()), True),
    ],
)
def test_a_kernel_that_reaches_nothing_but_parameters_keeps_nothing(make, is_derived):
    model, before = Fused(), Fused()
    model.embed.quant_method, before.embed.quant_method = Method(), Method()
    assert derived_state(model, before) == Derived(set(), set())
    model.embed.quant_method.kernel = make(model)
    found = derived_state(model, before)
    assert found == (Derived({"embed"}, set()) if is_derived else Derived(set(), {"embed"}))


class Unusual(torch.nn.Module):
    """A loader that does other things than to copy slices to parameters."""

    def __init__(self):
        super().__init__()
        self.filled, self.out, self.joined, self.copied = (torch.nn.Parameter(torch.zeros(4)) for _ in range(4))
        self.padded = torch.nn.Parameter(torch.zeros(4))
        self.plain, self.kept, self.made = torch.zeros(4), None, None

    def load_weights(self, weights):
        for name, tensor in weights:
            if name == "filled":
                self.filled.data.fill_(tensor)
            elif name == "out":
                torch.mul(tensor, 2, out=self.out.data)
            elif name == "joined":
                torch.cat([tensor, tensor], out=self.joined.data)
            elif name == "plain":
                self.plain.copy_(tensor)
                self.copied.data.copy_(tensor)
            elif name == "kept":
                self.kept = [tensor[1:]]
            elif name == "made":
                self.made = tensor.clone()
            elif name == "padded":
                self.padded.data[3:].fill_(0)
                self.padded.data[:3].copy_(tensor)


def test_tensors_that_go_elsewhere_are_known():
    shapes = {"filled": (), "out": (4,), "joined": (2,), "plain": (4,), "kept": (4,), "made": (4,), "padded": (3,)}
    with torch.device("meta"):
        model = Unusual()
    result = learn(model, {name: (torch.float32, shape) for name, shape in {**shapes, "unused": (4,)}.items()})
    assert result.opaque == {"filled", "out", "joined"}
    assert result.elsewhere == {"filled", "out", "joined", "plain", "kept", "made"}
    assert {box.parameter for box in result.boxes} == {"copied", "padded"}
