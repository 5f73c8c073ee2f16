"""How an engine that follows currently stands: the fields of `GET /weightwire/status`, the metrics, and the log."""

from __future__ import annotations

import datetime
import logging
import os
from typing import Any

from weightwire import __version__, _core
from weightwire._follower import FollowerStatus
from weightwire.errors import WeightwireError
from weightwire.integrations._metrics import Metrics


class EngineStatus:
    """`fields` is the answer of the status route: all engines have the same names. A field without a value is None."""

    def __init__(
        self, run: str | os.PathLike[str], mirror: str | os.PathLike[str] | None, metrics: Metrics | None, log: str
    ) -> None:
        """`log` is the name of the logger."""
        self._lag = _core.VersionLag()
        self._metrics = metrics
        self._logger = logging.getLogger(log)
        self._received_bytes = 0  # as the metric counts them
        self.fields: dict[str, Any] = {
            "run": os.fspath(run),
            "run_id": None,
            "version": None,
            "step": None,
            "digest": None,
            "newest_version": None,
            "staged_version": None,
            "pinned_version": None,
            "lag_versions": None,
            "lag_seconds": None,
            "has_lease": False,
            "waiting_for": None,
            "last_error": None,
            "bytes_received": 0,
            "versions_applied": 0,
            "anchors_loaded": 0,
            "mirror": None if mirror is None else os.fspath(mirror),
            "can_update": True,
            "refused": [],
            "not_compared": [],
            "last_update": None,
            "last_verify": None,
        }

    @property
    def lag_versions(self) -> int:
        return self._lag.versions

    def add_seen(self, version: int | None) -> None:
        """`version` is the run's newest."""
        self._lag.add_seen(version)

    def set_held(self, version: int, step: int | None, digest: str | None, run_id: str | None) -> None:
        """The engine holds this version."""
        self._lag.set_held(version)
        self.fields |= {"version": version, "step": step, "digest": digest}
        if run_id is not None and run_id != self.fields["run_id"]:
            self.fields["run_id"] = run_id
            self._set("weightwire_info", 1, run_id=run_id, package_version=__version__)
        self._set("weightwire_version", version)

    def set_follower(self, status: FollowerStatus) -> None:
        """Copies what the follower of the engine's weights, or of its mirror, says."""
        self.add_seen(status.newest_version)
        for name in (
            "staged_version",
            "has_lease",
            "waiting_for",
            "bytes_received",
            "versions_applied",
            "anchors_loaded",
        ):
            self.fields[name] = getattr(status, name)
        received, self._received_bytes = self._received_bytes, status.bytes_received
        self._add("weightwire_received_bytes_total", self._received_bytes - received)

    def update_lag(self) -> None:
        newest = self._lag.newest
        self.fields["newest_version"] = newest
        self.fields["lag_versions"] = None if newest is None else self._lag.versions
        self.fields["lag_seconds"] = None if newest is None else self._lag.seconds
        if newest is not None:
            self._set("weightwire_lag_versions", self._lag.versions)
            self._set("weightwire_lag_seconds", self._lag.seconds)

    def updated(self, version: int, commit_seconds: float, **more: Any) -> None:
        """The engine holds a new version, for which nothing was generated for `commit_seconds`. `more`: further fields
        of `last_update`."""
        self._add("weightwire_updates_total")
        if self._metrics is not None:
            self._metrics.observe("weightwire_commit_duration_seconds", commit_seconds)
        self.fields["last_update"] = {
            "version": version,
            "time": utc_now(),
            "commit_seconds": commit_seconds,
            **more,
        }

    def verified(self, version: int, elements: int, seconds: float) -> None:
        """The weights were compared with what the version has."""
        self.fields["last_verify"] = {
            "version": version,
            "time": utc_now(),
            "elements": elements,
            "verify_seconds": seconds,
        }

    def set_error(self, error: BaseException | None) -> None:
        """An attempt failed, or succeeded (None). Logs changes only."""
        text = None
        if isinstance(error, WeightwireError):
            text = str(error)
            self._add("weightwire_update_failures_total", code=error.code)
        elif error is not None:
            text = f"{type(error).__name__}: {error}"
            self._add("weightwire_update_failures_total", code="unexpected")
        if text is not None and text != self.fields["last_error"]:
            self._logger.error("weightwire: %s", text)
        elif text is None and self.fields["last_error"] is not None:
            self._logger.info("weightwire: works again after: %s", self.fields["last_error"])
        self.fields["last_error"] = text

    def _set(self, name: str, value: float, **labels: str) -> None:
        if self._metrics is not None:
            self._metrics.set(name, value, **labels)

    def _add(self, name: str, amount: float = 1, **labels: str) -> None:
        if self._metrics is not None:
            self._metrics.add(name, amount, **labels)


def utc_now() -> str:
    """The time as RFC 3339, as in all JSON of weightwire.

    >>> utc_now().endswith("Z")
    True
    """
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
