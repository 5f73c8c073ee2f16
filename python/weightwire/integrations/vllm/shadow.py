"""Learning where a checkpoint's elements go, by watching the model's own loader.

A second model is made on the meta device, where tensors have shapes and no data, and its `load_weights` is given meta
tensors under the checkpoint's names. Every slice that it moves shows, as a copy between two views, which elements go
where: for fused parameters, experts and any rank, without a table for each architecture. It costs no memory, and the
live weights are not touched.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from weightwire.integrations.vllm.places import Place, make_place


@dataclass
class LearnedMap:
    """What the loader does with a checkpoint."""

    places: list[Place] = field(default_factory=list)
    opaque: set[str] = field(default_factory=set)
    """Parameters that are made from the checkpoint in ways that are not mere moves."""
    elsewhere: set[str] = field(default_factory=set)
    """Tensors of the checkpoint of which something is kept, or made, that is no parameter."""


def shadow_model(vllm_config: Any) -> torch.nn.Module:
    """The worker's model once more, without data and without what is done after loading."""
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.torch_utils import set_default_torch_dtype

    config = copy.copy(vllm_config)
    # Layers enter themselves here by name; the live ones must stay.
    config.compilation_config = copy.copy(config.compilation_config)
    config.compilation_config.static_forward_context = {}
    with set_default_torch_dtype(config.model_config.dtype), torch.device("meta"):
        model: torch.nn.Module = initialize_model(vllm_config=config)
    return model


def learn(model: torch.nn.Module, tensors: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]) -> LearnedMap:
    """Where the elements of these tensors go. The model is on the meta device; its `load_weights` is called once."""
    sources: dict[int, str] = {}
    kept: list[torch.Tensor] = []

    def stream() -> Iterator[tuple[str, torch.Tensor]]:
        for name, (dtype, shape) in tensors.items():
            tensor = torch.empty(shape, dtype=dtype, device="meta")
            kept.append(tensor)  # so that no other storage gets its address
            sources[_storage(tensor)] = name
            yield name, tensor

    parameters = dict(tensors_of(model))
    # What a loader replaces has another storage after it, and comes out as not known.
    targets = {_storage(tensor): name for name, tensor in reversed(parameters.items())}
    with _Moves() as moves:
        model.load_weights(stream())

    result = LearnedMap()
    for target, source in moves.copies:
        parameter = targets.get(_storage(target))
        name = sources.get(_storage(source))
        if parameter is None:
            if name is not None:
                result.elsewhere.add(name)
            continue
        place = None
        if name is not None:
            place = make_place(
                name,
                parameter,
                tuple(target.shape),
                (source.storage_offset(), source.expand(target.shape).stride()),
                (target.storage_offset() - parameters[parameter].storage_offset(), target.stride()),
            )
        if place is None:
            result.opaque.add(parameter)
        elif target.numel() > 0:
            result.places.append(place)
    result.opaque.update(name for written in moves.written if (name := targets.get(_storage(written))) is not None)
    used = [*moves.used, *_kept_by(model)]
    result.elsewhere.update(name for tensor in used if (name := sources.get(_storage(tensor))) is not None)
    now = dict(tensors_of(model))
    for name, tensor in parameters.items():
        if name not in now or _storage(now[name]) != _storage(tensor):
            result.opaque.add(name)
    return result


def tensors_of(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters and buffers under all their names; shared ones come more than once."""
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def _kept_by(model: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Tensors that modules keep beside their parameters."""
    for module in model.modules():
        attributes = [value for name, value in vars(module).items() if name not in ("_parameters", "_buffers")]
        yield from (value for value in tree_leaves(attributes) if isinstance(value, torch.Tensor))


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


class _Moves(TorchDispatchMode):
    """Notes every copy between tensors, every other write to one, and from what anything else is made."""

    # Padding is filled with a number; what else is copied there later is noted as a copy.
    _FILLS = ("aten::fill_", "aten::zero_")

    def __init__(self) -> None:
        super().__init__()
        self.copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.written: list[torch.Tensor] = []
        self.used: list[torch.Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func is torch.ops.aten.copy_.default:
            self.copies.append((args[0], args[1]))
            return result
        inputs = _tensors(args, kwargs)
        schema = func._schema
        if schema.is_mutable:
            if schema.name not in self._FILLS or len(inputs) > 1:
                self.written += _written(schema, args, kwargs)
                self.used += inputs
        elif not schema.name.endswith("_like") and not schema.name.startswith("aten::new_"):
            storages = {_storage(tensor) for tensor in inputs}
            if any(_storage(tensor) not in storages for tensor in _tensors(result)):  # no view
                self.used += inputs
        return result


def _tensors(*values: Any) -> list[torch.Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, torch.Tensor)]


def _written(schema: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """What a call writes to, by whichever argument."""
    given = {**{argument.name: value for argument, value in zip(schema.arguments, args, strict=False)}, **kwargs}
    names = {a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write}
    return _tensors([value for name, value in given.items() if name in names])
