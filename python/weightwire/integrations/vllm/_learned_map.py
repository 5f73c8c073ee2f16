"""Learns where a checkpoint's elements go, by tracing the model's own loader.

A second model, the shadow, is made on the meta device, where tensors have shapes and no data. Its `load_weights` gets
meta tensors under the checkpoint's names. Each copy between two views then shows which elements go where: for fused
parameters, experts and any rank, without a table for each architecture. This needs no memory, and does not touch the
live weights.

A loader copies boxes: rows of q, k and v into one parameter, columns into a rank's part of it. Each such copy is a
`BoxMapping`: a box of the checkpoint's tensor, and the box of the parameter that it fills.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


@dataclass(frozen=True)
class BoxMapping:
    """A box of a tensor in the checkpoint, and where it is in a parameter. Offsets and strides are in elements of the
    flat tensor and the flat parameter."""

    tensor: str
    parameter: str
    sizes: tuple[int, ...]
    source_offset: int
    source_strides: tuple[int, ...]
    target_offset: int
    target_strides: tuple[int, ...]

    def locate(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Finds those of the tensor's ascending positions that are in the box. Returns their indices in `positions`,
        and their flat positions in the parameter."""
        extent = 1 + sum((size - 1) * stride for size, stride in zip(self.sizes, self.source_strides, strict=True))
        # Bounds of the same type, because numpy would otherwise convert all positions.
        most = np.iinfo(positions.dtype).max
        bounds = [positions.dtype.type(min(at, most)) for at in (self.source_offset, self.source_offset + extent)]
        first, end = (int(np.searchsorted(positions, bound)) for bound in bounds)
        rest: np.ndarray = positions[first:end].astype(np.int64) - self.source_offset
        if self.source_strides == (1,):  # all of it, without gaps
            return np.arange(first, end), self.target_offset + rest * self.target_strides[0]
        inside: np.ndarray = np.ones(len(rest), bool)
        target: np.ndarray = np.full(len(rest), self.target_offset, np.int64)
        for size, source_stride, target_stride in zip(
            self.sizes, self.source_strides, self.target_strides, strict=True
        ):
            index, rest = np.divmod(rest, source_stride)
            inside &= (index >= 0) & (index < size)
            target += index * target_stride
        inside &= rest == 0
        chosen = np.flatnonzero(inside)
        return first + chosen, target[chosen]

    def source(self, flat: torch.Tensor) -> torch.Tensor:
        """The box of the checkpoint's tensor."""
        return flat.as_strided(self.sizes, self.source_strides, flat.storage_offset() + self.source_offset)

    def target(self, flat: torch.Tensor) -> torch.Tensor:
        """The box of the parameter."""
        return flat.as_strided(self.sizes, self.target_strides, flat.storage_offset() + self.target_offset)

    def split(self, elements: int) -> Iterator[BoxMapping]:
        """Parts of about this many elements, which can be compared at once."""
        rows, row_elements = self.sizes[0], int(np.prod(self.sizes[1:], dtype=np.int64))
        step = max(1, elements // max(1, row_elements))
        for first in range(0, rows, step):
            yield replace(
                self,
                sizes=(min(step, rows - first), *self.sizes[1:]),
                source_offset=self.source_offset + first * self.source_strides[0],
                target_offset=self.target_offset + first * self.target_strides[0],
            )


def make_box_mapping(
    tensor: str,
    parameter: str,
    sizes: tuple[int, ...],
    source: tuple[int, tuple[int, ...]],
    target: tuple[int, tuple[int, ...]],
) -> BoxMapping | None:
    """Makes a mapping from two views of the same sizes, each an offset and strides; None if it is not one to one.

    The dimensions are in the order of the checkpoint's strides, and each stride is at least the extent of the later
    dimensions, so that `locate` can split a position by division. Adjacent dimensions that continue each other on both
    sides become one.
    """
    dims = sorted(
        (
            (source_stride, target_stride, size)
            for size, source_stride, target_stride in zip(sizes, source[1], target[1], strict=True)
            if size != 1
        ),
        reverse=True,
    )
    joined: list[tuple[int, int, int]] = []
    for source_stride, target_stride, size in dims:
        if source_stride <= 0 or target_stride <= 0:
            return None
        if joined:
            outer_source, outer_target, outer_size = joined[-1]
            if outer_source == size * source_stride and outer_target == size * target_stride:
                joined[-1] = (source_stride, target_stride, outer_size * size)
                continue
        joined.append((source_stride, target_stride, size))
    extent = 1
    for source_stride, _, size in reversed(joined):
        if source_stride < extent:
            return None  # overlaps
        extent = source_stride * (size - 1) + extent
    joined = joined or [(1, 1, 1)]
    return BoxMapping(
        tensor,
        parameter,
        tuple(size for _, _, size in joined),
        source[0],
        tuple(stride for stride, _, _ in joined),
        target[0],
        tuple(stride for _, stride, _ in joined),
    )


@dataclass
class LearnedMap:
    """The copies and other uses that the loader makes of a checkpoint's tensors."""

    boxes: list[BoxMapping] = field(default_factory=list)
    opaque: set[str] = field(default_factory=set)
    """Parameters that the loader computes, where it does not only copy."""
    elsewhere: set[str] = field(default_factory=set)
    """Tensors of the checkpoint from which the loader keeps or computes something other than a parameter."""


def shadow_model(vllm_config: Any) -> torch.nn.Module:
    """Makes the worker's model again, without data and without the processing after loading."""
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
    """Learns where the elements of these tensors go, by one call of `load_weights`. REQUIRES: the model is on the meta
    device."""
    sources: dict[int, str] = {}
    kept: list[torch.Tensor] = []

    def stream() -> Iterator[tuple[str, torch.Tensor]]:
        for name, (dtype, shape) in tensors.items():
            tensor = torch.empty(shape, dtype=dtype, device="meta")
            kept.append(tensor)  # so that no other storage gets its address
            sources[storage_of(tensor)] = name
            yield name, tensor

    parameters = dict(tensors_of(model))
    # A parameter that the loader replaces has a different storage afterwards, and counts as opaque.
    targets = {storage_of(tensor): name for name, tensor in reversed(parameters.items())}
    with _Moves() as moves:
        model.load_weights(stream())

    result = LearnedMap()
    for target, source in moves.copies:
        parameter = targets.get(storage_of(target))
        name = sources.get(storage_of(source))
        if parameter is None:
            if name is not None:
                result.elsewhere.add(name)
            continue
        box = None
        if name is not None:
            box = make_box_mapping(
                name,
                parameter,
                tuple(target.shape),
                (source.storage_offset(), source.expand(target.shape).stride()),
                (target.storage_offset() - parameters[parameter].storage_offset(), target.stride()),
            )
        if box is None:
            result.opaque.add(parameter)
        elif target.numel() > 0:
            result.boxes.append(box)
    result.opaque.update(name for written in moves.written if (name := targets.get(storage_of(written))) is not None)
    used = [*moves.used, *_kept_by(model)]
    result.elsewhere.update(name for tensor in used if (name := sources.get(storage_of(tensor))) is not None)
    now = dict(tensors_of(model))
    for name, tensor in parameters.items():
        if name not in now or storage_of(now[name]) != storage_of(tensor):
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


def storage_of(tensor: torch.Tensor) -> int:
    """Equal for tensors that share memory."""
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
            storages = {storage_of(tensor) for tensor in inputs}
            if any(storage_of(tensor) not in storages for tensor in _tensors(result)):  # no view
                self.used += inputs
        return result


def _tensors(*values: Any) -> list[torch.Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, torch.Tensor)]


def _written(schema: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """The tensors that a call writes to."""
    given = {**{argument.name: value for argument, value in zip(schema.arguments, args, strict=False)}, **kwargs}
    names = {a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write}
    return _tensors([value for name, value in given.items() if name in names])
