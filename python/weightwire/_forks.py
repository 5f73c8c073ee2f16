"""Detects a fork, which has a copy of an object, but none of its threads."""

from __future__ import annotations

import os


class OwnerProcess:
    """The process that made an object, which alone may use or end it."""

    def __init__(self) -> None:
        self._id = os.getpid()

    @property
    def is_a_fork(self) -> bool:
        """Whether this process is another one, with a copy of the object."""
        return os.getpid() != self._id
