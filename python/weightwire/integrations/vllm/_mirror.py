"""What the API server and the workers share on the disk: a mirror, and the change file in its folder.

The API server writes a staged change to the change file, and the workers map it.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import safe_open

from weightwire import _core
from weightwire._dtypes import dtype_name
from weightwire._mirror_lock import mirror_lock
from weightwire._update import TensorChange
from weightwire.errors import InvalidArgumentError


class HeldVersion(NamedTuple):
    version: int
    digest: str
    step: int | None = None
    run_id: str | None = None

    def is_same(self, other: HeldVersion | None) -> bool:
        """Whether both are the same weights under the same number."""
        return other is not None and (self.version, self.digest) == (other.version, other.digest)


def read_held(directory: Path) -> HeldVersion | None:
    """The version that a mirror holds; None if it holds none, or if a follower must recover it from a crash first."""
    _state_file(directory)
    held = _core.read_held(os.fspath(directory))
    return None if held is None else HeldVersion(*held)


def check_files(directory: Path, threads: int | None = None) -> None:
    """Recovers the mirror from a crash if necessary, and digests all files. Raises `CorruptError` unless they hold the
    mirror's version. Needs no bucket. REQUIRES: no follower has the mirror open."""
    _state_file(directory)
    _core.check_mirror(os.fspath(directory), threads or 0)


@contextlib.contextmanager
def read_lock(directory: Path) -> Iterator[None]:
    """Prevents followers in other processes from writing to the mirror inside the `with` block."""
    _state_file(directory)
    with mirror_lock(directory, timeout=0):
        yield


def _state_file(directory: Path) -> Path:
    state = directory / ".weightwire" / "state.json"
    if not state.is_file():
        raise InvalidArgumentError(
            f"{directory} is not a mirror; make one with `weightwire follow RUN {directory} --once` and serve that"
        )
    return state


def weight_files(directory: Path) -> list[Path]:
    """The files with weights: those that the index names, or all without an index."""
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        names: dict[str, str] = json.loads(index.read_text())["weight_map"]
        return [directory / name for name in sorted(set(names.values()))]
    return sorted(directory.glob("*.safetensors"))


def map_tensors(directory: Path) -> dict[str, torch.Tensor]:
    """The checkpoint's tensors by name, mapped: they are read when they are used, and show later writes to the
    files."""
    tensors: dict[str, torch.Tensor] = {}
    for path in weight_files(directory):
        with safe_open(path, "pt") as file:
            tensors.update({name: file.get_tensor(name) for name in list(file.keys())})
    return tensors


def written_at(directory: Path) -> float:
    """When its files last changed."""
    return max(file.stat().st_mtime for file in [*weight_files(directory), _state_file(directory)])


# --- the change file ---


class ChangedElements(NamedTuple):
    """The changed elements of one tensor."""

    positions: np.ndarray
    """Flat and ascending. 32 bits wide if they fit and are below the largest number of 32 bits."""
    new_bits: np.ndarray
    old_bits: np.ndarray


def write_change(path: Path, changes: Iterable[TensorChange], version: int) -> None:
    """REQUIRES: no tensor is new."""
    path.parent.mkdir(exist_ok=True)
    arrays: dict[str, np.ndarray] = {}
    for change in changes:
        positions = change.positions
        # Positions are most of the file, and nearly all tensors need only 32 bits.
        fits = len(positions) == 0 or int(positions[-1]) < 2**32 - 1
        arrays[f"positions/{change.name}"] = positions.astype(np.uint32) if fits else positions
        arrays[f"new/{change.name}"] = change.new_bits
        arrays[f"old/{change.name}"] = change.old_bits
    _write_file(path, arrays, {"format": "weightwire-change", "version": str(version)})


def _write_file(path: Path, arrays: dict[str, np.ndarray], metadata: dict[str, str]) -> None:
    """Writes the arrays themselves, where safetensors' own functions would copy them first. Not synced, because only
    processes on this machine read the file, and soon. Renamed when it is complete."""
    widest_first = sorted(arrays.items(), key=lambda item: -item[1].itemsize)  # so that all are aligned
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, array in widest_first:
        begin, end = end, end + array.nbytes
        header[name] = {"dtype": dtype_name(name, array), "shape": [len(array)], "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, array in widest_first:
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
