"""How far an engine is behind the run."""

from __future__ import annotations

import time


class Lag:
    """What is known of newer versions than the one held, and since when."""

    def __init__(self) -> None:
        self.newest: int | None = None
        self._held: int | None = None
        self._seen: list[tuple[int, float]] = []  # newer than what is held, ascending

    def saw(self, newest: int | None) -> None:
        """That is the run's newest version."""
        if newest is None:
            return
        self.newest = max(newest, self.newest or 0)
        if (self._held is None or newest > self._held) and (not self._seen or newest > self._seen[-1][0]):
            self._seen.append((newest, time.monotonic()))

    def holds(self, version: int) -> None:
        if self._held is not None and version < self._held and self.newest is not None:  # it went back
            self._seen = [(self.newest, time.monotonic())]
        self._held = version
        self._seen = [seen for seen in self._seen if seen[0] > version]

    @property
    def versions(self) -> int:
        return 0 if self.newest is None or self._held is None else max(0, self.newest - self._held)

    @property
    def seconds(self) -> float:
        """Since the first of them was seen."""
        return time.monotonic() - self._seen[0][1] if self._seen else 0.0
