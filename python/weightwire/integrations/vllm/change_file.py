"""A staged change on its way from the API server, which fetched it, to the workers: a file that they map."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from weightwire._update import TensorChange
from weightwire.integrations.vllm.tensor_file import map_file, write_file

_WORDS = {1: "U8", 2: "U16", 4: "U32", 8: "U64"}
_NUMPY = {"U8": np.uint8, "U16": np.uint16, "U32": np.uint32, "U64": np.uint64, "I64": np.int64}


class Changed(NamedTuple):
    """What happens to one tensor."""

    positions: np.ndarray
    """Flat, ascending; of 32 bits where they fit, and then below the largest number."""
    new_bits: np.ndarray
    old_bits: np.ndarray


def write_change(path: Path, changes: Iterable[TensorChange], version: int) -> None:
    """REQUIRES: no tensor is new."""
    kept = list(changes)
    arrays = {}
    for change in kept:
        positions = change.positions
        # Half the bytes, which are most of the file; of nearly all tensors.
        fits = len(positions) == 0 or int(positions[-1]) < 2**32 - 1
        arrays[f"positions/{change.name}"] = ("U32", positions.astype(np.uint32)) if fits else ("I64", positions)
        arrays[f"new/{change.name}"] = (_WORDS[change.unit_bytes], change.new_bits)
        arrays[f"old/{change.name}"] = (_WORDS[change.unit_bytes], change.old_bits)
    # The widest first, so that all are aligned.
    widest_first = dict(sorted(arrays.items(), key=lambda item: -item[1][1].itemsize))
    write_file(path, widest_first, {"format": "weightwire-change", "version": str(version)})


def read_change(path: Path) -> dict[str, Changed]:
    mapped = map_file(path)

    def words(name: str) -> np.ndarray:
        dtype, _, data = mapped[name]
        return data.view(_NUMPY[dtype])

    return {
        name.removeprefix("positions/"): Changed(
            words(name),
            words("new/" + name.removeprefix("positions/")),
            words("old/" + name.removeprefix("positions/")),
        )
        for name in mapped
        if name.startswith("positions/")
    }
