"""When a wait with a timeout is over."""

from __future__ import annotations

import math
import time


class Deadline:
    """`timeout` seconds from now; None: never."""

    def __init__(self, timeout: float | None) -> None:
        self.timeout = timeout
        self._end = math.inf if timeout is None else time.monotonic() + timeout

    def left(self, at_most: float = math.inf) -> float:
        """The seconds left, from 0 to `at_most`."""
        return max(0.0, min(at_most, self._end - time.monotonic()))

    @property
    def left_or_none(self) -> float | None:
        """The seconds left; None without a timeout."""
        return None if self.timeout is None else self.left()

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._end
