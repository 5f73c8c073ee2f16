"""Publishing from transformers' Trainer, and from TRL's trainers, which are built on it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from weightwire._arguments import whole_number
from weightwire._publisher import Publisher
from weightwire._ticket import Ticket
from weightwire.integrations._publish_log import PublishLog, close_leftover

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from weightwire._publisher_options import PublisherOptions


class PublishCallback(TrainerCallback):
    """Publishes the weights before the first step, after every `every_steps` optimizer steps, and at the end: after the
    last step, or the best weights if the trainer loads those (`load_best_model_at_end`).

    The trainer waits only for the comparison and the encoding. With `background=True` it does not wait for them either:
    they happen while it computes the next gradients, and its optimizer waits until they are done. Then only the
    optimizer may change the weights between two steps. Before evaluations and checkpoints, where other code changes
    them (moving averages, schedule-free optimizers), the trainer waits anyway, if it or an earlier callback requests
    them.

    The trainer's own log gets what publishing cost since the last log: `weightwire/version`, `weightwire/deltas` (the
    number of versions that were sent as deltas), `weightwire/delta_bytes` and `weightwire/changed_ratio` (of these
    deltas), and `weightwire/blocked_seconds`, by which publishing delayed the trainer. Weights that are still being
    read appear in the next log.

        trainer = Trainer(model, arguments, callbacks=[PublishCallback("s3://bucket/run", dtype=torch.bfloat16)])

    A training that resumes from a checkpoint continues the same chain of versions: the next version is exact, whatever
    the model holds. With several ranks, each publishes its own shards. The other keyword arguments are those of
    `weightwire.Publisher`; with `distributed=False` only the main process publishes, and the model must be whole there.
    """

    def __init__(
        self,
        run: str | os.PathLike[str],
        *,
        every_steps: int = 1,
        background: bool = False,
        **options: Unpack[PublisherOptions],
    ) -> None:
        self._run = run
        self._every_steps = whole_number("every_steps", every_steps, least=1)
        self._background = background
        self._options = options
        self._publisher: Publisher | None = None
        self._ticket: Ticket | None = None
        self._published_step = -1
        self._log = PublishLog()

    @property
    def publisher(self) -> Publisher | None:
        """The publisher while a training runs."""
        return self._publisher

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: Any = None, **kwargs: Any
    ) -> None:
        if self._options.get("distributed") is False and not state.is_world_process_zero:
            return
        leftover, self._publisher = self._publisher, None
        close_leftover(leftover)
        options: PublisherOptions = {
            "tokenizer": kwargs.get("processing_class"),
            "optimizer": kwargs.get("optimizer") if self._background else None,
            **self._options,
        }
        self._publisher = Publisher(self._run, model, **options)
        self._log = PublishLog()
        self._ticket = None
        self._log.publish(self._publisher, state.global_step, background=False)
        self._published_step = state.global_step

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        # Evaluations may follow, and at the end of a training its best weights are loaded before it says so.
        if self._ticket is not None:
            self._ticket.wait_read()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._publisher is not None and state.global_step % self._every_steps == 0:
            ends = control.should_evaluate or control.should_save or control.should_training_stop
            self._ticket = self._log.publish(
                self._publisher, state.global_step, background=self._background and not ends
            )
            self._published_step = state.global_step

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._publisher is not None:
            self._log.write_to(kwargs.get("logs"), state.log_history)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        publisher, self._publisher = self._publisher, None
        if publisher is None:
            return
        with publisher:
            # What came after the last of every `every_steps` steps; or, by load_best_model_at_end, the best weights.
            if state.global_step != self._published_step or getattr(args, "load_best_model_at_end", False):
                self._log.publish(publisher, state.global_step, background=False)
        self._log.write_to({}, state.log_history)  # what was not known yet
