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

HEADER = "x-weightwire-versions"
RANGE_HEADER = "x-weightwire-version-range"
_LIMIT = 16384  # characters of a header that is read

# The versions that made the rollout at hand.
_made_by: contextvars.ContextVar[list[int] | None] = contextvars.ContextVar("made_by", default=None)


def versions_of(headers: Mapping[str, str]) -> list[int]:
    """The versions in `3:0-17 4:17-40, 4:0-9`, or the oldest and the newest in `3-4`; none if that is not what the
    headers say."""
    spans, summary = headers.get(HEADER, ""), headers.get(RANGE_HEADER, "")
    if len(spans) > _LIMIT or len(summary) > _LIMIT:
        return []
    numbers = [span.partition(":")[0] for span in spans.replace(",", " ").split()] or summary.split("-")
    return [int(number) for number in numbers] if all(number.isdecimal() for number in numbers) else []


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
                made_by = _made_by.get()
                if made_by is not None:
                    made_by += versions_of(response.headers)
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
