"""A staged change on its way from the API server, which fetched it, to the workers: a file that they map."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from weightwire.changes import TensorChange
from weightwire.integrations.vllm.tensor_file import map_file, write_file

_WORDS = {1: "U8", 2: "U16", 4: "U32", 8: "U64"}
_NUMPY = {"U8": np.uint8, "U16": np.uint16, "U32": np.uint32, "U64": np.uint64}


class Changed(NamedTuple):
    """What happens to one tensor."""

    positions: np.ndarray
    new_bits: np.ndarray
    old_bits: np.ndarray


def write_change(path: Path, changes: Iterable[TensorChange], version: int) -> None:
    """REQUIRES: no tensor is new."""
    kept = list(changes)
    arrays = {}
    # The widest first, so that all are aligned.
    for change in kept:
        arrays[f"positions/{change.name}"] = ("I64", change.positions)
    for change in sorted(kept, key=lambda change: -change.unit_bytes):
        arrays[f"new/{change.name}"] = (_WORDS[change.unit_bytes], change.new_bits)
        arrays[f"old/{change.name}"] = (_WORDS[change.unit_bytes], change.old_bits)
    write_file(path, arrays, {"format": "weightwire-change", "version": str(version)})


def read_change(path: Path) -> dict[str, Changed]:
    mapped = map_file(path)

    def words(name: str) -> np.ndarray:
        dtype, _, data = mapped[name]
        return data.view(_NUMPY[dtype])

    return {
        name.removeprefix("positions/"): Changed(
            data.view(np.int64),
            words("new/" + name.removeprefix("positions/")),
            words("old/" + name.removeprefix("positions/")),
        )
        for name, (_, _, data) in mapped.items()
        if name.startswith("positions/")
    }
