"""What is counted, for vLLM's own `/metrics`."""

from __future__ import annotations

from typing import Any

# Commits take a millisecond where parameters are written in place, and long where modules are loaded anew.
_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
# With several API servers each writes its own values to files, and any of them answers for all. One of them follows.
_ONE_PROCESS = "livemostrecent"


class Metrics:
    """Registered where vLLM registers its own, so they can be made once in a process: in the one that follows. Thread
    safe."""

    def __init__(self) -> None:
        from prometheus_client import Counter, Gauge, Histogram

        def gauge(name: str, what: str) -> Any:
            return Gauge(name, what, multiprocess_mode=_ONE_PROCESS)

        self._version = gauge("weightwire_version", "The version that the engine holds.")
        self._lag = gauge("weightwire_lag_versions", "How many versions of the run are newer than the one held.")
        self._updates = Counter("weightwire_updates", "Versions that the engine was brought to.")
        self._failures = Counter(
            "weightwire_update_failures",
            "Tries to find, fetch or make an update that failed, after which it is as it was.",
        )
        self._commit_seconds = Histogram(
            "weightwire_commit_seconds", "What an update held the engine for, between two steps.", buckets=_SECONDS
        )

    def holds(self, version: int) -> None:
        self._version.set(version)

    def is_behind(self, versions: int) -> None:
        self._lag.set(versions)

    def updated(self, seconds: float) -> None:
        self._updates.inc()
        self._commit_seconds.observe(seconds)

    def failed(self) -> None:
        self._failures.inc()
