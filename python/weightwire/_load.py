"""Loads one version into memory."""

from __future__ import annotations

import asyncio
import os
from typing import Any, Literal

from weightwire import _core
from weightwire._arguments import whole_number
from weightwire._dtypes import to_numpy, to_torch
from weightwire.errors import InvalidArgumentError


def load(
    run: str | os.PathLike[str],
    version: int | None = None,
    *,
    framework: Literal["numpy", "torch"] = "numpy",
    threads: int = 0,
) -> dict[str, Any]:
    """Returns the weights of a version, by default the newest, as a state dict in memory. It has tied weights under
    each of their names, as the same array."""
    if framework not in ("numpy", "torch"):
        raise InvalidArgumentError('framework is "numpy" or "torch"')
    if version is not None:
        version = whole_number("version", version)
    tensors, aliases, _, _ = _core.load(os.fspath(run), version, whole_number("threads", threads))
    make = to_numpy if framework == "numpy" else to_torch
    state = {name: make(dtype, shape, data) for name, dtype, shape, data in tensors}
    state.update({alias: state[name] for alias, name in aliases.items()})
    return state


async def load_async(
    run: str | os.PathLike[str],
    version: int | None = None,
    *,
    framework: Literal["numpy", "torch"] = "numpy",
    threads: int = 0,
) -> dict[str, Any]:
    """`load` for an event loop."""
    return await asyncio.to_thread(load, run, version, framework=framework, threads=threads)
