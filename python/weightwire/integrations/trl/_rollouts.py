"""Rollouts of AsyncGRPOTrainer that carry the version which made them, as the server says."""

from __future__ import annotations

import contextvars
from collections.abc import Mapping
from typing import Any

import aiohttp
from trl.experimental.async_grpo.async_rollout_worker import (
    AsyncRolloutWorker,
    RolloutGroup,
    RolloutSample,
    _AsyncRolloutLoop,
)

from weightwire.integrations._version_headers import VERSION_HEADER

# The versions that made the rollout at hand.
_made_by: contextvars.ContextVar[list[int] | None] = contextvars.ContextVar("made_by", default=None)


def version_of(headers: Mapping[str, str]) -> int | None:
    """The oldest version that made a token of the answer; None if the server does not say."""
    text = headers.get(VERSION_HEADER, "")
    return int(text) if text.isdecimal() and len(text) < 20 else None


class TaggingLoop(_AsyncRolloutLoop):
    """TRL tags a rollout with the version that was newest at the trainer when its group began. A server that follows
    may have been behind. Here the tag is the oldest version that made any token of the rollout, turns included; where
    the server does not say, it stays TRL's."""

    async def _post(self, path: str, payload: dict[str, Any], timeout: float, max_retries: int = 3) -> Any:
        async def post() -> Any:
            async with self.session.post(
                f"{self.vllm_server_url}{path}", json=payload, timeout=aiohttp.ClientTimeout(total=timeout)
            ) as response:
                response.raise_for_status()
                content = await response.json()
                made_by, version = _made_by.get(), version_of(response.headers)
                if made_by is not None and version is not None:
                    made_by.append(version)
                return content or {}

        return await self._retry(post, label=f"POST {path}", max_attempts=max_retries)

    async def _generate_one(self, *args: Any, **kwargs: Any) -> Any:
        made_by: list[int] = []
        token = _made_by.set(made_by)
        try:
            rollout = await self.generate_rollout(*args, **kwargs)
        finally:
            _made_by.reset(token)
        for sequence in rollout[2]:
            sequence.made_by = min(made_by, default=None)
        return rollout

    async def generate_rollout(self, *args: Any, **kwargs: Any) -> Any:
        """Plays one rollout, and returns what TRL's `_generate_one` returns. Override it to play rollouts of your
        own."""
        return await super()._generate_one(*args, **kwargs)

    async def _score_group(self, group: RolloutGroup) -> list[RolloutSample]:
        samples: list[RolloutSample] = await super()._score_group(group)
        sequences = [sequence for rollout in group.completions_sequences for sequence in rollout]
        for sample, sequence in zip(samples, sequences, strict=True):
            if sequence.made_by is not None:
                sample.model_version = sequence.made_by
        return samples


class RolloutWorker(AsyncRolloutWorker):
    """TRL's worker, with such a loop. `WeightTransfer.attach` does the same to the worker that the trainer makes."""

    _loop_cls = TaggingLoop
