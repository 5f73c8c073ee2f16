"""A run: which versions it has, who follows it, and versions taken out of it."""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import dataclass
from typing import Any, Literal

from weightwire import _core
from weightwire._arguments import whole_number
from weightwire._dtypes import to_numpy, to_torch
from weightwire.errors import InvalidArgumentError

_logger = logging.getLogger("weightwire.run")

Framework = Literal["numpy", "torch"]


@dataclass(frozen=True, kw_only=True)
class VersionInfo:
    """A version of a run. `weightwire log --json` has the same fields."""

    version: int
    step: int
    time: str
    """When it was published, by the publisher's clock."""
    digest: str
    """Of the state: the same wherever that version is held."""
    delta_bytes: int | None
    """None for a version without a delta: the first one, or a rebase."""
    anchor_bytes: int | None
    """Of the anchor that the bucket holds of this version now; None if it holds none."""
    changed_elements: int | None
    """None without a delta."""
    elements: int
    """Of the model."""
    model_bytes: int
    layout_changed: bool
    """Names, types or shapes of tensors differ from the version before."""
    can_check_out: bool
    """False if gc has deleted what leads to the version."""
    writer_id: str
    """Of the publisher."""


@dataclass(frozen=True, kw_only=True)
class FollowerInfo:
    """A follower of a run, as its lease describes it. `weightwire followers --json` has the same fields."""

    follower_id: str
    name: str | None
    version: int | None
    """None if it holds none yet."""
    newest_version: int | None
    """Of the run."""
    lag_versions: int | None
    """None if it holds no version."""
    needs_deltas_after: int | None
    """gc keeps the deltas after this version for it."""
    needs_anchor_version: int | None
    """gc keeps the anchor of this version for it."""
    renewed_time: str
    """When it renewed its lease, by the store's clock."""
    ttl_seconds: float
    """How long its lease is active without being renewed."""
    is_active: bool


class Run:
    """A run, for reading. Raises `NotFoundError` if there is none at this URL or path.

    It keeps connections to the store but holds nothing that must be closed. Several threads may use it, also after a
    fork. Each method has a twin for event loops, such as `newest_async`.

    >>> import tempfile
    >>> import numpy as np
    >>> import weightwire as ww
    >>> bucket = tempfile.mkdtemp()
    >>> with ww.Publisher(bucket, {"w": np.ones(3, np.float32)}) as publisher:
    ...     ticket = publisher.publish(step=7)
    >>> run = ww.Run(bucket)
    >>> run.newest().step
    7
    >>> [version.can_check_out for version in run.versions(last=10)]
    [True]
    >>> run.followers()
    []
    >>> run.load()
    {'w': array([1., 1., 1.], dtype=float32)}
    """

    def __init__(self, run: str | os.PathLike[str]) -> None:
        self._core = _core.Run(os.fspath(run))

    @classmethod
    async def open_async(cls, run: str | os.PathLike[str]) -> Run:
        return await asyncio.to_thread(cls, run)

    def __repr__(self) -> str:
        return f"Run({self.run!r})"

    @property
    def run(self) -> str:
        """Its URL or path, without secrets."""
        return self._core.name

    @property
    def run_id(self) -> str:
        return self._core.run_id

    def newest(self) -> VersionInfo | None:
        """The newest version, or None if the run has none yet."""
        newest = self._core.newest()
        return None if newest is None else VersionInfo(**newest)

    async def newest_async(self) -> VersionInfo | None:
        return await asyncio.to_thread(self.newest)

    def versions(self, last: int | None = None) -> list[VersionInfo]:
        """All versions, or the newest `last`, oldest first. Each costs a request."""
        if last is not None:
            last = whole_number("last", last, least=1)
        return [VersionInfo(**info) for info in self._core.versions(last)]

    async def versions_async(self, last: int | None = None) -> list[VersionInfo]:
        return await asyncio.to_thread(self.versions, last)

    def followers(self) -> list[FollowerInfo]:
        """The followers that keep a lease, by name. Those that may only read keep none, and are missing."""
        followers, unreadable_leases = self._core.followers()
        if unreadable_leases:
            _logger.warning("%d leases of %s cannot be read", unreadable_leases, self.run)
        return [FollowerInfo(**info) for info in followers]

    async def followers_async(self) -> list[FollowerInfo]:
        return await asyncio.to_thread(self.followers)

    def load(
        self, version: int | None = None, *, framework: Framework = "numpy", threads: int | None = None
    ) -> dict[str, Any]:
        """Returns the weights of a version, by default the newest, as a state dict in memory. It has tied weights under
        each of their names, as the same array."""
        if framework not in ("numpy", "torch"):
            raise InvalidArgumentError('framework is "numpy" or "torch"')
        tensors, aliases = self._core.load(_version(version), _threads(threads))
        make = to_numpy if framework == "numpy" else to_torch
        state = {name: make(dtype, shape, data) for name, dtype, shape, data in tensors}
        state.update({alias: state[name] for alias, name in aliases.items()})
        return state

    async def load_async(
        self, version: int | None = None, *, framework: Framework = "numpy", threads: int | None = None
    ) -> dict[str, Any]:
        return await asyncio.to_thread(self.load, version, framework=framework, threads=threads)

    def checkout(
        self,
        directory: str | os.PathLike[str],
        version: int | None = None,
        *,
        include_code: bool = False,
        threads: int | None = None,
    ) -> VersionInfo:
        """Writes a version, by default the newest, as a plain Hugging Face directory, which must not exist yet. Returns
        which version that was.

        The directory appears when it is complete. `include_code` also writes files that can run as code when loaded
        (.py, pickles): only use it with a bucket that you trust.
        """
        info = self._core.checkout(os.fspath(directory), _version(version), bool(include_code), _threads(threads))
        return VersionInfo(**info)

    async def checkout_async(
        self,
        directory: str | os.PathLike[str],
        version: int | None = None,
        *,
        include_code: bool = False,
        threads: int | None = None,
    ) -> VersionInfo:
        return await asyncio.to_thread(self.checkout, directory, version, include_code=include_code, threads=threads)


def load(
    run: str | os.PathLike[str],
    version: int | None = None,
    *,
    framework: Framework = "numpy",
    threads: int | None = None,
) -> dict[str, Any]:
    """Returns the weights of a version, by default the newest, as a state dict in memory. It has tied weights under
    each of their names, as the same array. The same as `Run(run).load(version)`."""
    return Run(run).load(version, framework=framework, threads=threads)


async def load_async(
    run: str | os.PathLike[str],
    version: int | None = None,
    *,
    framework: Framework = "numpy",
    threads: int | None = None,
) -> dict[str, Any]:
    """`load` for an event loop."""
    return await asyncio.to_thread(load, run, version, framework=framework, threads=threads)


def _version(version: int | None) -> int | None:
    return None if version is None else whole_number("version", version)


def _threads(threads: int | None) -> int:
    return 0 if threads is None else whole_number("threads", threads, least=1)
