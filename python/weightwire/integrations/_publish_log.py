"""What publishing cost, as a trainer's log has it."""

from __future__ import annotations

import time
from typing import Any

from weightwire.publisher import Publisher, Ticket


class PublishLog:
    """Publishes, and keeps what it cost until the trainer logs. For one thread."""

    def __init__(self, elements: int) -> None:
        self._elements = elements
        self._tickets: list[Ticket] = []
        self._seconds = 0.0

    def publish(self, publisher: Publisher, step: int, model: Any = None) -> Ticket:
        start = time.monotonic()
        ticket = publisher.publish(step, model)
        self._seconds += time.monotonic() - start
        self._tickets.append(ticket)
        return ticket

    def write_to(self, logs: dict[str, Any], history: list[dict[str, Any]]) -> None:
        """Adds `weightwire/version`, `weightwire/bytes`, `weightwire/changed_share` and `weightwire/publish_seconds`,
        summed over what was published since the last time; nothing if nothing was."""
        if not self._tickets:
            return
        stats = [ticket.stats for ticket in self._tickets]
        added = {
            "weightwire/version": stats[-1].version,
            "weightwire/bytes": sum(one.bytes for one in stats),
            "weightwire/changed_share": sum(one.changed for one in stats) / max(1, self._elements * len(stats)),
            "weightwire/publish_seconds": self._seconds,
        }
        logs.update(added)
        # The trainer keeps its history before it tells callbacks of it.
        if history:
            history[-1].update(added)
        self._tickets.clear()
        self._seconds = 0.0
