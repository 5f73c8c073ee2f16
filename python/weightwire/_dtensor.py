"""torch.distributed: whether there are several ranks, and the shard of a tensor that this rank holds."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from weightwire.errors import InvalidArgumentError


class LocalShard(NamedTuple):
    """A box of a tensor, and the data in it."""

    shape: tuple[int, ...]
    """Of the whole tensor."""
    start: tuple[int, ...]
    extent: tuple[int, ...]
    data: Any


def is_distributed() -> bool:
    """Whether there is a process group of several ranks."""
    distributed = sys.modules.get("torch.distributed")
    return (
        distributed is not None
        and distributed.is_available()
        and distributed.is_initialized()
        and distributed.get_world_size() > 1
    )


def dtensor_types() -> tuple[type, ...]:
    """The type DTensor; none before something has imported its module, because no value can be one then."""
    module = sys.modules.get("torch.distributed.tensor")
    return () if module is None else (module.DTensor,)


def is_dtensor(value: object) -> bool:
    return isinstance(value, dtensor_types())


def local_of(value: Any) -> Any:
    """The local tensor of a DTensor; any other value unchanged."""
    return value.detach().to_local() if is_dtensor(value) else value


def _chunk(start: int, size: int, parts: int, index: int) -> tuple[int, int]:
    """(start, size) of one of the parts that torch.chunk would make."""
    step = -(-size // parts)
    begin = min(size, step * index)
    return start + begin, min(size, begin + step) - begin


def _cuts(name: str, value: Any) -> list[tuple[int, int]]:
    """(dimension of the tensor, dimension of the mesh), in the order in which the tensor was cut."""
    cuts, strided = [], []
    sizes = value.device_mesh.shape
    for mesh_dim, placement in enumerate(value.placements):
        kind = type(placement).__name__
        if kind == "Shard":
            cuts.append((placement.dim, mesh_dim))
        elif kind == "_StridedShard":
            strided.append((placement.dim, mesh_dim))
            # fully_shard makes these from a tensor that tensor parallelism has cut in the same dimension. If the later
            # dimensions of the mesh cut first, the shard is a box.
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


def local_shard(name: str, value: Any) -> LocalShard | None:
    """The shard of a tensor that this rank holds; None if it holds nothing."""
    shape = tuple(value.shape)
    if not is_dtensor(value):
        return LocalShard(shape, (0,) * len(shape), shape, value)
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
    return LocalShard(shape, tuple(start), tuple(extent), data)


def whole_of(name: str, value: Any) -> Any:
    """The tensor itself, or the data of a DTensor that is not cut. Raises for one that is."""
    if not is_dtensor(value):
        return value
    shard = local_shard(name, value)
    if shard is None or shard.extent != shard.shape:
        raise InvalidArgumentError(
            f"'{name}' is held in shards by several ranks: make the publisher on all of them, with distributed=True"
        )
    return shard.data
