"""Adapters for trainers and engines. Each needs what it adapts to, and nothing else does."""
