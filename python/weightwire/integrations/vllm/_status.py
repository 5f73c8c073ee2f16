"""The status of a vLLM server that follows: `EngineStatus`, and the limits that vLLM's workers report."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from weightwire.integrations._engine_status import EngineStatus
from weightwire.integrations._metrics import Metrics

LOGGER = "vllm.weightwire"
logger = logging.getLogger(LOGGER)


class FollowStatus(EngineStatus):
    def __init__(self, run: str, mirror: Path) -> None:
        super().__init__(run, mirror, Metrics(), LOGGER)

    def committed(self, version: int, committed: dict[str, Any], **more: Any) -> None:
        """The engine has committed an update. `more`: further fields of `last_update`."""
        self.updated(
            version,
            committed["commit_seconds"],
            write_seconds=committed["write_seconds"],
            elements=committed["elements"],
            **more,
        )
        logger.info(
            "weightwire: version %d; %d elements, %.1f ms in the engine's loop",
            version,
            committed["elements"],
            1e3 * committed["commit_seconds"],
        )

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
