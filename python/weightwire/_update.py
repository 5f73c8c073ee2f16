"""Update: a change of a target to a newer version. TensorChange: the changed elements of one tensor."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from weightwire.follower import Follower, FollowerStats

_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


@dataclass(frozen=True)
class TensorChange:
    """The changed units of one tensor. A unit is an element, or a byte where elements are narrower than one.

    Reading `positions` copies. Reading `new_bits` or `old_bits` copies only if the change has several pieces. The
    arrays are read-only.
    """

    name: str
    dtype: str
    """The safetensors name."""
    shape: tuple[int, ...]
    unit_bytes: int
    whole: np.ndarray | None
    """All bytes of a tensor that is new, or whose type or shape changes; it has no positions."""
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


class Update:
    """A change of the target to a newer version: fetched, verified and staged, but not applied yet."""

    def __init__(self, follower: Follower, before: FollowerStats, after: FollowerStats) -> None:
        self._follower = follower
        self.from_version = before.version
        """The version that the target holds before the update; None if none."""
        assert after.staged is not None
        self.version: int = after.staged
        """The version that the target holds after the update."""
        self.bytes_fetched = after.bytes_fetched - before.bytes_fetched
        self.seconds: float | None = None
        """How long apply() took."""

    @property
    def changes(self) -> list[TensorChange] | None:
        """What it changes, by tensor; None for a whole load, where everything may change. Raises once it is applied.

        >>> import tempfile
        >>> import numpy as np
        >>> import weightwire as ww
        >>> weights = {"w": np.zeros(4, np.float32)}
        >>> bucket = tempfile.mkdtemp()
        >>> with ww.Publisher(bucket, weights) as publisher:
        ...     ticket = publisher.publish(step=0)
        ...     ticket = publisher.publish(1, {"w": np.array([0, 0, 1, 0], np.float32)})
        >>> with ww.Follower(bucket, weights) as follower:
        ...     (change,) = follower.poll().changes
        >>> change.name, change.positions, change.new_bits.view(np.float32)
        ('w', array([2]), array([1.], dtype=float32))
        """
        staged = self._follower._staged(self)
        if staged is None:
            return None
        return [
            TensorChange(name, dtype, shape, unit_bytes, whole, tuple(pieces))
            for name, dtype, shape, unit_bytes, whole, pieces in staged[1]
        ]

    @property
    def changes_layout(self) -> bool:
        """Whether names, types or shapes change too. Raises once it is applied."""
        staged = self._follower._staged(self)
        return staged is not None and bool(staged[0])

    def apply(self) -> Update:
        """Writes it to the target. Writes nothing if the result would not be exact."""
        start = time.monotonic()
        self._follower._apply(self)
        self.seconds = time.monotonic() - start
        return self

    def undo(self) -> None:
        """Rolls the target back, and pins the follower to the previous version until `pin(None)`. The first load and
        whole loads of a mirror cannot be undone, because the old weights are not kept."""
        self._follower._undo(self)

    def __repr__(self) -> str:
        return f"<Update from version {self.from_version} to {self.version}>"
