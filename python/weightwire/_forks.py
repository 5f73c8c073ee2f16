"""Objects that a fork of their process has only a copy of: it has none of their threads."""

from __future__ import annotations

import ctypes
import os
from typing import Any


class Process:
    """The process that made an object."""

    def __init__(self) -> None:
        self._id = os.getpid()

    @property
    def is_a_fork(self) -> bool:
        """Whether this process has only a copy: then it is not its to use or to end."""
        return os.getpid() != self._id


def never_end(core: Any) -> None:
    """The core would wait for its threads at its end: in a fork, which has none, it must not come to one."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(core))
