"""What a rank of torch.distributed holds of a tensor: all of it, a box, or nothing."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from weightwire.errors import InvalidArgumentError


class Held(NamedTuple):
    """A box of a tensor, and its data."""

    shape: tuple[int, ...]
    """Of the whole tensor."""
    start: tuple[int, ...]
    extent: tuple[int, ...]
    data: Any


def is_dtensor(value: object) -> bool:
    # One cannot be here unless somebody has imported this.
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def local_of(value: Any) -> Any:
    """What lies in this process of a DTensor; everything else as it is."""
    return value.detach().to_local() if is_dtensor(value) else value


def _chunk(start: int, size: int, parts: int, index: int) -> tuple[int, int]:
    """As torch.chunk cuts: (start, size) of one of the parts."""
    step = -(-size // parts)
    begin = min(size, step * index)
    return start + begin, min(size, begin + step) - begin


def _cuts(name: str, value: Any) -> list[tuple[int, int]]:
    """(dimension of the tensor, dimension of the mesh) in the order in which they were cut."""
    cuts, strided = [], []
    sizes = value.device_mesh.shape
    for mesh_dim, placement in enumerate(value.placements):
        kind = type(placement).__name__
        if kind == "Shard":
            cuts.append((placement.dim, mesh_dim))
        elif kind == "_StridedShard":
            strided.append((placement.dim, mesh_dim))
            # What fully_shard makes of a tensor that tensor parallelism has cut in the same dimension: cut by the later
            # dimensions of the mesh first. Then it is a box again.
            inner = 1
            for later, other in enumerate(value.placements[mesh_dim + 1 :], mesh_dim + 1):
                if type(other).__name__ == "Shard" and other.dim == placement.dim:
                    inner *= sizes[later]
            if placement.split_factor != inner:
                raise InvalidArgumentError(
                    f"'{name}' is cut as {placement}, which is not a box of it: shard it in another dimension"
                )
        elif kind != "Replicate":
            raise InvalidArgumentError(
                f"'{name}' is {placement} over the ranks: reduce it (redistribute to Shard or Replicate) first"
            )
    return cuts + strided


def held_of(name: str, value: Any) -> Held | None:
    """What this rank holds of a tensor; None if nothing."""
    shape = tuple(value.shape)
    if not is_dtensor(value):
        return Held(shape, (0,) * len(shape), shape, value)
    mesh = value.device_mesh
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return None
    start, extent = [0] * len(shape), list(shape)
    for dim, mesh_dim in _cuts(name, value):
        start[dim], extent[dim] = _chunk(start[dim], extent[dim], mesh.shape[mesh_dim], coordinate[mesh_dim])
    data = local_of(value)
    if 0 in extent and 0 not in shape:
        return None
    if tuple(data.shape) != tuple(extent):
        raise InvalidArgumentError(
            f"'{name}' has a shard of shape {tuple(data.shape)} where {tuple(extent)} is expected: how it is cut "
            f"({value.placements}) is not understood"
        )
    return Held(shape, tuple(start), tuple(extent), data)


def whole_of(name: str, value: Any) -> Any:
    """For one process: a DTensor that is not cut, as a tensor."""
    if not is_dtensor(value):
        return value
    held = held_of(name, value)
    if held is None or held.extent != held.shape:
        raise InvalidArgumentError(
            f"'{name}' is held in shards by several ranks: make the publisher on all of them, with distributed=True"
        )
    return held.data
