"""Reading a mirror while a follower of another program keeps it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from weightwire import _core
from weightwire._deadline import Deadline
from weightwire.errors import NotFoundError, WaitTimeoutError

_PAUSE_SECONDS = 0.02


@dataclass(frozen=True, kw_only=True)
class MirrorVersion:
    """What a locked mirror holds."""

    version: int
    step: int
    digest: str
    path: Path
    """The directory to read: the mirror, or the current copy of a mirror with copies (`swap=True`)."""


@contextlib.contextmanager
def mirror_lock(path: str | os.PathLike[str], *, timeout: float | None = None) -> Iterator[MirrorVersion]:
    """Keeps a mirror unchanged inside the `with` block, and says which version it holds.

    Waits while a follower writes an update, for at most `timeout` seconds. Followers wait for the end of the block
    before they write, so keep it short. Of a mirror with copies (`swap=True`) it locks the current copy: that one stays
    while the follower goes on to others.

    Raises `NotFoundError` if the directory is not a mirror, `UnavailableError` if it holds no version yet or a follower
    must recover it from a crash first, and `WaitTimeoutError` on timeout. At the end of the block it raises
    `UnavailableError` if the mirror has changed after all, as it can on a network file system without locks.

    >>> import tempfile
    >>> import numpy as np
    >>> import weightwire as ww
    >>> bucket, mirror = tempfile.mkdtemp(), tempfile.mkdtemp()
    >>> with ww.Publisher(bucket, {"w": np.ones(3, np.float32)}) as publisher:
    ...     ticket = publisher.publish(step=7)
    >>> with ww.Follower(bucket, mirror) as follower:
    ...     update = follower.wait()
    ...     update = update.apply()
    >>> with ww.mirror_lock(mirror) as held:
    ...     held.version, sorted(file.name for file in held.path.glob("*.safetensors"))
    (0, ['model.safetensors'])
    """
    deadline = Deadline(timeout)
    while True:
        directory = _current(Path(path))
        try:
            read = _core.try_mirror_read(os.fspath(directory))
        except NotFoundError:
            if directory == _current(Path(path)):
                raise
            continue  # the follower has just replaced and removed the copy
        if read is not None:
            break
        if deadline.is_over:
            raise WaitTimeoutError(f"the follower of {path} did not finish an update within {timeout} seconds")
        time.sleep(deadline.left(_PAUSE_SECONDS))
    try:
        yield MirrorVersion(version=read.version, step=read.step, digest=read.digest, path=directory)
        read.confirm()
    finally:
        read.unlock()


def _current(directory: Path) -> Path:
    """The directory itself, or the copy that its link leads to."""
    has_copies = (directory / ".weightwire" / "swap").exists() and (directory / "current").is_symlink()
    return directory / os.readlink(directory / "current") if has_copies else directory
