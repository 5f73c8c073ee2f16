"""Whether weights were written to while they were read in the background. torch counts writes to each tensor."""

from __future__ import annotations

from typing import Any

from weightwire import _core
from weightwire._dtensor import dtensor_types, is_dtensor


class WriteCheck:
    """The core calls this after it has read the tensors. Returns why the read is invalid if one of them was written to
    since this object was made, else None."""

    def __init__(self, names: list[str], counts: _core.WriteCounts) -> None:
        self._names = names
        self._counts = counts

    @classmethod
    def of(cls, names: list[str], tensors: list[Any]) -> WriteCheck:
        # torch counts writes to a DTensor and to its local tensor separately.
        if any(issubclass(kind, dtensor_types()) for kind in set(map(type, tensors))):
            sharded = [(name, tensor) for name, tensor in zip(names, tensors, strict=True) if is_dtensor(tensor)]
            names = names + [name for name, _ in sharded]
            tensors = tensors + [tensor._local_tensor for _, tensor in sharded]
        return cls(names, _core.WriteCounts(tensors))

    def __call__(self) -> str | None:
        changed = self._counts.first_changed()
        if changed is None:
            return None
        return (
            f"'{self._names[changed]}' was changed while it was read, so it was not published: call the ticket's "
            "wait_read() before anything but the optimizer changes the weights, or publish with background=False"
        )
