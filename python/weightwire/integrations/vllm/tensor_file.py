"""Tensors in safetensors files, mapped; and writing such a file. Nothing is read before it is touched."""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

MAX_HEADER_BYTES = 100 << 20


def map_file(path: Path) -> dict[str, tuple[str, tuple[int, ...], np.ndarray]]:
    """All tensors of a file, by name: the type as safetensors spells it, the shape, and the bytes.

    The memory is a private map: what others write to the file is seen until somebody writes here, and nobody does.
    """
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    size = int.from_bytes(mapped[:8], "little")
    if size > min(MAX_HEADER_BYTES, len(mapped) - 8):
        raise ValueError(f"{path} is no safetensors file: its header would have {size} bytes")
    header: dict[str, Any] = json.loads(mapped[8 : 8 + size])
    data: np.ndarray = np.frombuffer(mapped, np.uint8, offset=8 + size)
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            if not 0 <= begin <= end <= len(data):
                raise ValueError(f"{path} is no safetensors file: '{name}' lies outside of it")
            tensors[name] = (entry["dtype"], tuple(entry["shape"]), data[begin:end])
    return tensors


def write_file(path: Path, arrays: Mapping[str, tuple[str, np.ndarray]], metadata: Mapping[str, str]) -> None:
    """Writes arrays as a safetensors file, under another name first. Whoever reads it is on this machine and now, so it
    need not get to the disk."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for name, (dtype, array) in arrays.items():
        begin, end = end, end + array.nbytes
        header[name] = {"dtype": dtype, "shape": [len(array)], "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, array in arrays.values():
            file.write(array.data)
    os.replace(partial, path)
