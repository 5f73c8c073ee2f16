"""The cost of publishing, for a trainer's own log."""

from __future__ import annotations

from typing import Any

from weightwire._ticket import Ticket, TicketStats
from weightwire.publisher import Publisher

_LEFTOVER_SECONDS = 30.0
"""How long the next training waits until an earlier one's versions are sent."""


class PublishLog:
    """Publishes, and keeps the costs until the trainer logs. Not thread safe."""

    def __init__(self) -> None:
        self._tickets: list[Ticket] = []
        self._publisher: Publisher | None = None
        self._held_before = 0.0
        self._waits_for_commit = False

    def publish(self, publisher: Publisher, step: int, model: Any = None, *, background: bool | None = None) -> Ticket:
        # The sizes of all ranks are known once the version is committed.
        self._waits_for_commit = publisher.distributed
        self._publisher = publisher
        ticket = publisher.publish(step, model, background=background)
        self._tickets.append(ticket)
        return ticket

    def write_to(self, logs: dict[str, Any] | None, history: list[dict[str, Any]]) -> None:
        """Adds `weightwire/version`, `weightwire/bytes`, `weightwire/changed_share` and `weightwire/publish_seconds`,
        with `weightwire/deltas`, the number of deltas that the bytes are of,
        summed over what was published since the last time; nothing if nothing was."""
        if logs is None:
            return
        stats = self._take()
        if not stats or self._publisher is None:
            return
        held_before, self._held_before = self._held_before, self._publisher.stats.held_seconds
        added = {
            "weightwire/version": stats[-1].version,
            "weightwire/bytes": sum(one.bytes for one in stats),
            "weightwire/deltas": sum(one.bytes > 0 for one in stats),
            "weightwire/changed_share": sum(one.changed for one in stats) / max(1, sum(one.elements for one in stats)),
            "weightwire/publish_seconds": self._held_before - held_before,
        }
        logs.update(added)
        # The trainer adds to its history before it calls callbacks.
        if history and "weightwire/version" not in history[-1]:
            history[-1].update(added)
        elif history:
            history.append({"step": stats[-1].step, **added})

    def _take(self) -> list[TicketStats]:
        """Takes the stats of all calls whose costs are known, in order."""
        known: list[TicketStats] = []
        while self._tickets:
            stats = self._tickets[0].stats
            if stats.stage == "reading" or (self._waits_for_commit and not self._tickets[0].done):
                break
            self._tickets.pop(0)
            if stats.stage != "failed":  # the publisher logs failures itself
                known.append(stats)
        return known


def close_leftover(publisher: Publisher | None) -> None:
    """Closes the publisher of a training that ended without closing it. Waits some time until its versions are sent."""
    if publisher is not None:
        publisher._close_within(_LEFTOVER_SECONDS, "not everything that an earlier training published was sent")
