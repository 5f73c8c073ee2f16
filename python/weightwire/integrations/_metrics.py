"""The metrics of an engine that follows, registered with prometheus_client. src/runner/metrics.h names them."""

from __future__ import annotations

from typing import Any

from weightwire import _core

# With several API servers, each process writes its values to files, and any of them answers for all. Only one follows.
_ONE_PROCESS = "livemostrecent"


class Metrics:
    """A process can make them only once, because prometheus_client has one registry. Thread safe."""

    def __init__(self) -> None:
        from prometheus_client import Counter, Histogram

        self._rows = {row["name"]: row for row in _core.metrics()}
        self._metrics: dict[str, Any] = {}
        for name, row in self._rows.items():
            if row["type"] == "counter":
                self._metrics[name] = Counter(name, row["help"], row["labels"])
            elif row["type"] == "histogram":
                self._metrics[name] = Histogram(name, row["help"], row["labels"], buckets=row["buckets"])
        for code in _core.failure_codes():
            self._metrics["weightwire_update_failures_total"].labels(code=code)

    def set(self, name: str, value: float, **labels: str) -> None:
        """Sets a gauge. A gauge appears once it is set, because 0 would be wrong before."""
        if name not in self._metrics:
            from prometheus_client import Gauge

            row = self._rows[name]
            self._metrics[name] = Gauge(name, row["help"], row["labels"], multiprocess_mode=_ONE_PROCESS)
        metric = self._metrics[name]
        (metric.labels(**labels) if labels else metric).set(value)

    def add(self, name: str, amount: float = 1, **labels: str) -> None:
        """Adds to a counter."""
        metric = self._metrics[name]
        (metric.labels(**labels) if labels else metric).inc(amount)

    def observe(self, name: str, value: float) -> None:
        """Adds a value to a histogram."""
        self._metrics[name].observe(value)
