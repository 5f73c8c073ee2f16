"""The cost of publishing, for a trainer's own log."""

from __future__ import annotations

from typing import Any

from weightwire._publisher import Publisher
from weightwire._ticket import PublishStatus, Ticket


class PublishLog:
    """Publishes, and keeps the costs until the trainer logs. Not thread safe."""

    def __init__(self) -> None:
        self._tickets: list[Ticket] = []
        self._publisher: Publisher | None = None
        self._blocked_before = 0.0
        self._waits_for_commit = False

    def publish(self, publisher: Publisher, step: int, model: Any = None, *, background: bool | None = None) -> Ticket:
        # The sizes of all ranks are known once the version is committed.
        self._waits_for_commit = publisher.distributed
        self._publisher = publisher
        ticket = publisher.publish(step, model=model, background=background)
        self._tickets.append(ticket)
        return ticket

    def write_to(self, logs: dict[str, Any] | None, history: list[dict[str, Any]]) -> None:
        """Adds the costs of what was published since the last time, if anything was: `weightwire/version`,
        `weightwire/deltas` (their number), `weightwire/delta_bytes` and `weightwire/changed_ratio` (of all deltas
        together), and `weightwire/blocked_seconds`.

        A version that was sent as an anchor, as the first one is, has no delta. If there was none, the keys about their
        sizes are missing.
        """
        if logs is None:
            return
        published = self._take()
        if not published or self._publisher is None:
            return
        blocked_before, self._blocked_before = self._blocked_before, self._publisher.status.blocked_seconds
        deltas = [one for one in published if one.delta_bytes is not None]
        added: dict[str, Any] = {
            "weightwire/version": published[-1].version,
            "weightwire/deltas": len(deltas),
            "weightwire/blocked_seconds": self._blocked_before - blocked_before,
        }
        if deltas:
            changed = sum(one.changed_elements or 0 for one in deltas)
            added["weightwire/delta_bytes"] = sum(one.delta_bytes or 0 for one in deltas)
            added["weightwire/changed_ratio"] = changed / max(1, sum(one.elements for one in deltas))
        logs.update(added)
        # The trainer adds to its history before it calls callbacks.
        if history and "weightwire/version" not in history[-1]:
            history[-1].update(added)
        elif history:
            history.append({"step": published[-1].step, **added})

    def _take(self) -> list[PublishStatus]:
        """Takes the statuses of all calls whose costs are known, in order."""
        known: list[PublishStatus] = []
        while self._tickets:
            status = self._tickets[0].status
            if status.stage == "reading" or (self._waits_for_commit and not self._tickets[0].done()):
                break
            self._tickets.pop(0)
            if status.stage != "failed":  # the publisher logs failures itself
                known.append(status)
        return known


def close_leftover(publisher: Publisher | None) -> None:
    """Closes the publisher of a training that ended without closing it, as leaving `with` after an exception does."""
    if publisher is not None:
        publisher._close_within_exit_timeout()
