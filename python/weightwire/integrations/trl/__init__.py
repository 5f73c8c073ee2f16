"""TRL's asynchronous trainers publish their weights, and rollouts carry the version that made them."""

from typing import TYPE_CHECKING, Any

from weightwire.integrations.trl._transfer import WeightTransfer

if TYPE_CHECKING:
    from weightwire.integrations.trl._rollouts import RolloutWorker, TaggingLoop

__all__ = ["RolloutWorker", "TaggingLoop", "WeightTransfer"]


def __getattr__(name: str) -> Any:
    # Imported on first use, because only AsyncGRPOTrainer needs it, and the import takes seconds.
    if name in ("RolloutWorker", "TaggingLoop"):
        from weightwire.integrations.trl import _rollouts

        return getattr(_rollouts, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
