"""Maps the elements of a checkpoint's tensors to an engine's parameters.

A model's loader copies boxes: rows of q, k and v into one parameter, columns into a rank's part of it. Each such copy
is a `BoxMapping`: a box of the checkpoint's tensor, and the box of the parameter that it fills."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch


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
