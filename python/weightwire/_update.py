"""Update: a change of a target to another version. TensorChange: the changed elements of one tensor."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from weightwire._follower import Follower

_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


@dataclass(frozen=True, kw_only=True)
class TensorChange:
    """The changed units of one tensor. A unit is an element, or a byte if elements are narrower than one.

    Reading `positions` copies. Reading `new_bits` or `old_bits` copies only if the change has several pieces. The
    arrays are read-only.
    """

    name: str
    dtype: str
    """The safetensors name."""
    shape: tuple[int, ...]
    unit_bytes: int
    full_bytes: np.ndarray | None
    """All bytes of a tensor that is new, or whose type or shape changes; it has no positions. Otherwise None."""
    _pieces: tuple[tuple[int, np.ndarray, np.ndarray, np.ndarray], ...] = field(repr=False)
    """(first unit, offsets from it, new units' bytes, old units' bytes), ascending."""

    @property
    def changed_units(self) -> int:
        return sum(len(offsets) for _, offsets, _, _ in self._pieces)

    @property
    def positions(self) -> np.ndarray:
        """Flat indices of the changed units, ascending, as int64."""
        positions: np.ndarray = np.empty(self.changed_units, np.int64)
        end = 0
        for first, offsets, _, _ in self._pieces:
            begin, end = end, end + len(offsets)
            np.add(offsets, np.int64(first), out=positions[begin:end])
        return positions

    @property
    def new_bits(self) -> np.ndarray:
        """As unsigned integers as wide as a unit."""
        return self._joined(2)

    @property
    def old_bits(self) -> np.ndarray:
        """The same of the version held before."""
        return self._joined(3)

    def _joined(self, index: int) -> np.ndarray:
        parts: list[Any] = [piece[index] for piece in self._pieces]
        joined = parts[0] if len(parts) == 1 else np.concatenate(parts or [np.empty(0, np.uint8)])
        words: np.ndarray = joined.view(_WORDS[self.unit_bytes])
        return words


class Update:
    """A change of the target to another version: fetched, verified and staged. `apply` writes it."""

    def __init__(
        self,
        follower: Follower,
        staged: tuple[int | None, int, bool, bool, Any],
        bytes_fetched: int,
        *,
        applied: bool = False,
    ) -> None:
        self._follower = follower
        self._from, self._version, self._is_full_load, self._layout_changed, self._change = staged
        self._bytes_fetched = bytes_fetched
        self._applied = applied
        self._apply_seconds: float | None = 0.0 if applied else None

    @property
    def from_version(self) -> int | None:
        """The version that the target held when the update was staged; None if it held none."""
        return self._from

    @property
    def version(self) -> int:
        """The version that the target holds after the update."""
        return self._version

    @property
    def applied(self) -> bool:
        """Whether the target has it. False again after `undo`."""
        return self._applied

    @property
    def is_full_load(self) -> bool:
        """Whether it replaces everything. `changes` is None then."""
        return self._is_full_load

    @property
    def layout_changed(self) -> bool:
        """Whether the names, types or shapes of tensors change."""
        return self._layout_changed

    @property
    def bytes_fetched(self) -> int:
        """Bytes of deltas and anchors that were fetched for it."""
        return self._bytes_fetched

    @property
    def apply_seconds(self) -> float | None:
        """How long `apply` took; None before."""
        return self._apply_seconds

    @property
    def changes(self) -> list[TensorChange] | None:
        """What changes, by tensor; None for a full load, which may change everything.

        >>> import tempfile
        >>> import numpy as np
        >>> import weightwire as ww
        >>> weights = {"w": np.zeros(4, np.float32)}
        >>> bucket = tempfile.mkdtemp()
        >>> with ww.Publisher(bucket, weights) as publisher:
        ...     ticket = publisher.publish(step=0)
        ...     ticket = publisher.publish(step=1, model={"w": np.array([0, 0, 1, 0], np.float32)})
        >>> with ww.Follower(bucket, weights) as follower:
        ...     (change,) = follower.poll().changes
        >>> change.name, change.positions, change.new_bits.view(np.float32)
        ('w', array([2]), array([1.], dtype=float32))
        """
        if self._is_full_load:
            return None
        tensors = [] if self._change is None else self._change.tensors()
        return [
            TensorChange(
                name=name, dtype=dtype, shape=shape, unit_bytes=unit_bytes, full_bytes=full, _pieces=tuple(pieces)
            )
            for name, dtype, shape, unit_bytes, full, pieces in tensors
        ]

    def apply(self) -> Update:
        """Writes it to the target, which then holds exactly `version`. Does nothing if it is applied already.

        Raises `UnavailableError` while readers hold the lock of a mirror: call it again.
        """
        if not self._applied:
            start = time.monotonic()
            self._follower._apply(self)
            self._apply_seconds = time.monotonic() - start
            self._applied = True
        return self

    def undo(self) -> None:
        """Brings the target back to `from_version`, and pins the follower there until `unpin`. Only the last update
        applied can be undone; a full load only if the target keeps the previous weights, as arrays and `swap` do."""
        self._follower._undo(self)
        self._applied = False

    async def apply_async(self) -> Update:
        """`apply` for an event loop."""
        return await asyncio.to_thread(self.apply)

    async def undo_async(self) -> None:
        """`undo` for an event loop."""
        await asyncio.to_thread(self.undo)

    def __repr__(self) -> str:
        return f"<Update from version {self._from} to {self._version}>"
