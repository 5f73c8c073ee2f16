"""TRL's asynchronous trainers publish their weights, and rollouts say which version made them."""

from weightwire.integrations.trl.transfer import WeightTransfer

__all__ = ["WeightTransfer"]
