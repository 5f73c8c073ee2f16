"""A staged change for the workers: the API server writes it to a safetensors file, and the workers map the file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import safe_open

from weightwire._update import TensorChange

_WORDS = {1: "U8", 2: "U16", 4: "U32", 8: "U64"}


class ChangedElements(NamedTuple):
    """The changed elements of one tensor."""

    positions: np.ndarray
    """Flat and ascending. 32 bits wide if they fit and are below the largest number of 32 bits."""
    new_bits: np.ndarray
    old_bits: np.ndarray


def write_change(path: Path, changes: Iterable[TensorChange], version: int) -> None:
    """REQUIRES: no tensor is new."""
    arrays: dict[str, tuple[str, np.ndarray]] = {}
    for change in list(changes):
        positions = change.positions
        # Positions are most of the file, and nearly all tensors need only 32 bits.
        fits = len(positions) == 0 or int(positions[-1]) < 2**32 - 1
        arrays[f"positions/{change.name}"] = ("U32", positions.astype(np.uint32)) if fits else ("I64", positions)
        arrays[f"new/{change.name}"] = (_WORDS[change.unit_bytes], change.new_bits)
        arrays[f"old/{change.name}"] = (_WORDS[change.unit_bytes], change.old_bits)
    _write_file(path, arrays, {"format": "weightwire-change", "version": str(version)})


def _write_file(path: Path, arrays: dict[str, tuple[str, np.ndarray]], metadata: dict[str, str]) -> None:
    """Writes the arrays themselves, where safetensors' own functions would copy them first. Not synced, because only
    processes on this machine read the file, and soon. Renamed when it is complete."""
    widest_first = sorted(arrays.items(), key=lambda item: -item[1][1].itemsize)  # so that all are aligned
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, (dtype, array) in widest_first:
        begin, end = end, end + array.nbytes
        header[name] = {"dtype": dtype, "shape": [len(array)], "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, (_, array) in widest_first:
            file.write(array.data)
    os.replace(partial, path)


def read_change(path: Path) -> dict[str, ChangedElements]:
    """Maps the file. The arrays are read when they are used."""
    with safe_open(path, "pt") as file:

        def array(name: str) -> np.ndarray:
            mapped: np.ndarray = file.get_tensor(name).numpy()
            return mapped

        names = file.keys()
        tensors = [name.removeprefix("positions/") for name in names if name.startswith("positions/")]
        return {
            name: ChangedElements(array(f"positions/{name}"), array(f"new/{name}"), array(f"old/{name}"))
            for name in tensors
        }
