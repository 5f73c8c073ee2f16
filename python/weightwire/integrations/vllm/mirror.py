"""A mirror as a worker and the API server see it: what it says of itself, and its tensors."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from weightwire import _core
from weightwire._dtypes import to_torch
from weightwire.errors import InvalidArgumentError, UnavailableError
from weightwire.integrations.vllm.tensor_file import map_file


class MirrorHeld(NamedTuple):
    version: int
    digest: str


def read_held(directory: Path) -> MirrorHeld | None:
    """What a mirror holds; None if it holds nothing, or if a follower has to finish what a crash left."""
    said: dict[str, Any] = json.loads(_state_file(directory).read_text())
    if said.get("version") is None or said.get("writing") is not None:
        return None
    unsynced = said.get("unsynced")
    if unsynced is not None and unsynced != Path("/proc/sys/kernel/random/boot_id").read_text().strip():
        return None
    return MirrorHeld(int(said["version"]), str(said["state"]))


def check_files(directory: Path) -> None:
    """Finishes what a crash has left, and digests all files: raises `CorruptError` unless they are what the mirror says
    that it holds. Needs no bucket; nobody else may be following into it."""
    _state_file(directory)
    _core.check_mirror(os.fspath(directory), 0)


@contextlib.contextmanager
def reading(directory: Path) -> Iterator[None]:
    """Keeps a follower of another process from writing meanwhile."""
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
    """The files with weights: those that the index names, or all if there is none."""
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        names: dict[str, str] = json.loads(index.read_text())["weight_map"]
        return [directory / name for name in sorted(set(names.values()))]
    return sorted(directory.glob("*.safetensors"))


def map_tensors(directory: Path) -> dict[str, torch.Tensor]:
    """The checkpoint's tensors as they are on the disk, by name."""
    tensors: dict[str, torch.Tensor] = {}
    for path in weight_files(directory):
        for name, (dtype, shape, data) in map_file(path).items():
            tensors[name] = to_torch(dtype, shape, data)
    return tensors


def written_at(directory: Path) -> float:
    """When its files last changed."""
    return max(file.stat().st_mtime for file in [*weight_files(directory), _state_file(directory)])
