"""Objects that a fork of their process has only a copy of: it has none of their threads."""

from __future__ import annotations

import os


class Process:
    """The process that made an object."""

    def __init__(self) -> None:
        self._id = os.getpid()

    @property
    def is_a_fork(self) -> bool:
        """Whether this process has only a copy: then it is not its to use or to end."""
        return os.getpid() != self._id
