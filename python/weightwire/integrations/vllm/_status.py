"""How an engine that follows currently stands: the fields of `GET /weightwire/status`, and vLLM's own `/metrics`."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

from weightwire import _core
from weightwire.integrations.vllm._mirror import HeldVersion

logger = logging.getLogger("vllm.weightwire")

# Commits take a millisecond where parameters are written in place, and long where modules are loaded anew.
_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
# With several API servers each writes its values to files, and any of them answers for all. Only one of them follows.
_ONE_PROCESS = "livemostrecent"


class FollowStatus:
    """`fields` is the answer of the status route."""

    def __init__(self, run: str, mirror: Path) -> None:
        self._lag = _core.VersionLag()
        self._metrics = Metrics()
        self.fields: dict[str, Any] = {
            "run": run,
            "mirror": str(mirror),
            "version": None,
            "digest": None,
            "newest": None,
            "versions_behind": None,
            "seconds_behind": None,
            "last_asked": None,  # the time of the last request for a newer version
            "pinned_version": None,
            "updates": 0,
            "failed_updates": 0,
            "last_error": None,
            "last_update": None,
            "last_check": None,
            "can_update": True,
            "refused": [],
            "not_compared": [],
        }

    @property
    def versions_behind(self) -> int:
        return self._lag.versions

    def saw_newest(self, version: int | None) -> None:
        """`version` is the run's newest."""
        self._lag.add_seen(version)

    def holds(self, held: HeldVersion) -> None:
        """The engine holds this version."""
        self._lag.set_held(held.version)
        self._metrics.holds(held.version)
        self.fields["version"], self.fields["digest"] = held

    def updated(self, version: int, committed: dict[str, Any], **more: Any) -> None:
        """The engine has committed an update. `more`: further fields of `last_update`."""
        self.fields["updates"] += 1
        self._metrics.updated(committed["seconds"])
        self.fields["last_update"] = {
            "version": version,
            "time": time.time(),
            "elements": committed["elements"],
            **more,
            "seconds_in_loop": committed["seconds"],
            "seconds_writing": committed["seconds_writing"],
        }
        logger.info(
            "weightwire: version %d; %d elements, %.1f ms in the engine's loop",
            version,
            committed["elements"],
            1e3 * committed["seconds"],
        )

    def checked(self, version: int, elements: int, seconds: float) -> None:
        """Everything was compared with the mirror."""
        self.fields["last_check"] = {
            "version": version,
            "time": time.time(),
            "elements": elements,
            "seconds": seconds,
        }

    def set_limits(self, workers: list[dict[str, Any]], not_compared: list[str]) -> None:
        """Keeps and logs what the engine cannot do, from the workers' summaries of their parameters."""
        refused = sorted({text for worker in workers for text in worker["refused"]})
        self.fields["refused"], self.fields["not_compared"] = refused, not_compared
        if not any(worker["in_place"] or worker["by_reload"] for worker in workers):
            self.fields["can_update"] = False
            logger.error(
                "weightwire: every update will be refused, so the server stays as it is: %s", "; ".join(refused)
            )
        else:
            for text in refused:
                logger.warning("weightwire: updates that touch it will be refused: %s", text)
        if not_compared:
            logger.warning(
                "weightwire: %d parameters, '%s' among them, are not compared with the mirror, but believed to be as "
                "vLLM loaded them from it",
                len(not_compared),
                not_compared[0],
            )

    def set_error(self, text: str | None) -> None:
        """An attempt failed, or succeeded (None). Logs changes only."""
        if text is not None:
            self.fields["failed_updates"] += 1
            self._metrics.failed()
        if text is not None and text != self.fields["last_error"]:
            logger.error("weightwire: %s", text)
        elif text is None and self.fields["last_error"] is not None:
            logger.info("weightwire: the trouble is over")
        self.fields["last_error"] = text

    def update_lag(self) -> None:
        self.fields["newest"] = self._lag.newest
        self.fields["versions_behind"] = self._lag.versions
        self.fields["seconds_behind"] = self._lag.seconds
        self._metrics.is_behind(self._lag.versions)


class Metrics:
    """Registered with vLLM's own metrics, so a process can make them only once; the process that follows does. Thread
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
