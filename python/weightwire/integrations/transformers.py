"""Publishing from transformers' Trainer, and from TRL's trainers, which are built on it."""

from __future__ import annotations

import os
import time
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from weightwire.publisher import Publisher, Ticket


class PublishCallback(TrainerCallback):
    """Publishes the weights after every optimizer step, or every `every` steps, and once before the first.

    The trainer waits only for the comparison and the encoding. What each version cost goes into the trainer's own log:
    `weightwire/version`, `weightwire/bytes`, `weightwire/changed_share`, `weightwire/publish_seconds`.

        trainer = Trainer(model, arguments, callbacks=[PublishCallback("s3://bucket/run", dtype=torch.bfloat16)])

    A training that goes on from a checkpoint goes on with the same chain of versions: the next version is exact,
    whatever the model holds. Only the main process publishes; the model must be whole there (data parallel). Keyword
    arguments are those of `weightwire.Publisher`.
    """

    def __init__(self, run: str | os.PathLike[str], *, every: int = 1, **options: Any) -> None:
        if every < 1:
            raise ValueError("every must be at least 1")
        self._run = run
        self._every = every
        self._options = options
        self._publisher: Publisher | None = None
        self._tickets: list[Ticket] = []
        self._elements = 0

    @property
    def publisher(self) -> Publisher | None:
        """The publisher while a training runs."""
        return self._publisher

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: Any = None, **kwargs: Any
    ) -> None:
        if not state.is_world_process_zero:
            return
        options = {"tokenizer": kwargs.get("processing_class"), **self._options}
        self._publisher = Publisher(self._run, model, **options)
        self._elements = sum(parameter.numel() for parameter in model.state_dict().values())
        self._publish(state.global_step)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._publisher is not None and state.global_step % self._every == 0:
            self._publish(state.global_step)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if logs is None or self._publisher is None or not self._tickets:
            return
        stats = [ticket.stats for ticket in self._tickets]
        logs["weightwire/version"] = stats[-1].version
        logs["weightwire/bytes"] = sum(one.bytes for one in stats)
        logs["weightwire/changed_share"] = sum(one.changed for one in stats) / max(1, self._elements * len(stats))
        logs["weightwire/publish_seconds"] = self._seconds
        # The trainer keeps its history before it tells callbacks of it.
        if state.log_history:
            state.log_history[-1].update({key: value for key, value in logs.items() if key.startswith("weightwire/")})
        self._tickets.clear()
        self._seconds = 0.0

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            try:
                publisher.drain()
            finally:
                publisher.close()

    _seconds = 0.0

    def _publish(self, step: int) -> None:
        assert self._publisher is not None
        start = time.monotonic()
        self._tickets.append(self._publisher.publish(step))
        self._seconds += time.monotonic() - start
