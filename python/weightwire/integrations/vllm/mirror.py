"""A mirror as the workers and the API server read it: the version that it holds, and its tensors."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import safe_open

from weightwire import _core
from weightwire.errors import InvalidArgumentError, UnavailableError


class HeldVersion(NamedTuple):
    version: int
    digest: str


def read_held(directory: Path) -> HeldVersion | None:
    """The version that a mirror holds; None if it holds none, or if a follower must recover it from a crash first."""
    _state_file(directory)
    held = _core.read_held(os.fspath(directory))
    return None if held is None else HeldVersion(*held)


def check_files(directory: Path) -> None:
    """Recovers the mirror from a crash if necessary, and digests all files. Raises `CorruptError` unless they hold the
    mirror's version. Needs no bucket. REQUIRES: no follower has the mirror open."""
    _state_file(directory)
    _core.check_mirror(os.fspath(directory), 0)


@contextlib.contextmanager
def read_lock(directory: Path) -> Iterator[None]:
    """Prevents followers in other processes from writing to the mirror inside the `with` block."""
    _state_file(directory)
    with (directory / ".weightwire" / "content.lock").open("rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            raise UnavailableError(f"the mirror {directory} is being written just now") from error
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
