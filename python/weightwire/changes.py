"""What an update changes, tensor by tensor: for whoever applies it to something that is not a plain array, such as an
engine's own parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


@dataclass(frozen=True)
class TensorChange:
    """The changed units of one tensor. A unit is an element, or a byte where elements are narrower than one.

    Nothing is copied until `positions`, `new_bits` or `old_bits` is asked for, and not even then where the change is in
    one piece. The arrays cannot be written to.
    """

    name: str
    dtype: str
    """As safetensors spells it."""
    shape: tuple[int, ...]
    unit_bytes: int
    whole: np.ndarray | None
    """All bytes, for a tensor that is new or has another type or shape; then there are no positions."""
    pieces: tuple[tuple[int, np.ndarray, np.ndarray, np.ndarray], ...]
    """(first unit, offsets from it, new units' bytes, old units' bytes), ascending."""

    @property
    def changed(self) -> int:
        return sum(len(offsets) for _, offsets, _, _ in self.pieces)

    @property
    def positions(self) -> np.ndarray:
        """Flat indices of the changed units, ascending, as int64."""
        positions: np.ndarray = np.empty(self.changed, np.int64)
        end = 0
        for first, offsets, _, _ in self.pieces:
            begin, end = end, end + len(offsets)
            np.add(offsets, np.int64(first), out=positions[begin:end])
        return positions

    @property
    def new_bits(self) -> np.ndarray:
        """As unsigned integers as wide as a unit."""
        return self._joined(2)

    @property
    def old_bits(self) -> np.ndarray:
        return self._joined(3)

    def _joined(self, index: int) -> np.ndarray:
        parts: list[Any] = [piece[index] for piece in self.pieces]
        joined = parts[0] if len(parts) == 1 else np.concatenate(parts or [np.empty(0, np.uint8)])
        words: np.ndarray = joined.view(_WORDS[self.unit_bytes])
        return words
