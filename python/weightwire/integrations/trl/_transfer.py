"""What TRL's asynchronous trainers take as `weight_transfer=`: publishing, in place of a connection to the server."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from weightwire._dtypes import parse_dtype, torch_dtype
from weightwire._fp8 import Fp8
from weightwire._lora import is_peft
from weightwire._model_state import roles_of
from weightwire._publisher import Publisher
from weightwire._ticket import Ticket
from weightwire.errors import InvalidArgumentError
from weightwire.integrations._publish_log import PublishLog, close_leftover

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from weightwire._publisher_options import PublisherOptions, TransferOptions

_log = logging.getLogger("weightwire")


class WeightTransfer:
    """Publishes the weights of `AsyncGRPOTrainer` or `AsyncDistillationTrainer`, and lets the trainer go on.

        transfer = WeightTransfer("s3://bucket/run")
        trainer = AsyncGRPOTrainer(model, ..., weight_transfer=transfer)
        transfer.attach(trainer)
        trainer.train()

    Each synchronisation is one version, the first one before the first step. Servers follow on their own schedule, so
    `pause` and `resume` do nothing to them. The trainer's `model_version` is the number of the run's version, and
    rollouts of `AsyncGRPOTrainer` carry the version that made them, which its `max_staleness` then bounds.

    `dtype` is what is published, whatever the trainer holds. With `background=True` the weights of a model that lies
    whole in the main process, and has no adapters, are read while the trainer computes the next gradients; only its
    optimizer waits until that is done, and nothing else may change the weights between two steps. Other
    keyword arguments are those of `weightwire.Publisher`. The model's configuration and tokenizer go with every anchor.
    """

    def __init__(
        self,
        run: str | os.PathLike[str],
        *,
        dtype: Any = "bfloat16",
        background: bool = False,
        **options: Unpack[TransferOptions],
    ) -> None:
        if options.get("when_full", "wait") != "wait":
            raise InvalidArgumentError("TRL counts a version for each synchronisation, so none can be skipped")
        if "lora" in options:
            raise InvalidArgumentError("TRL merges adapters before it sends weights: there is nothing to choose")
        self._run = run
        self._dtype = dtype
        self._background = background
        self._options = options
        self._trainer: Any = None
        self._publisher: Publisher | None = None
        self._publish_log = PublishLog()
        self._version: int | None = None
        self._ticket: Ticket | None = None

    def attach(self, trainer: Any) -> None:
        """Connects this to its trainer. Call it once on every rank, before training."""
        self._trainer = trainer
        trainer.add_callback(_LogCosts(self))
        worker = trainer.rollout_worker
        if worker is None or not hasattr(worker, "_loop_cls"):
            return
        from trl.experimental.async_grpo.async_rollout_worker import _AsyncRolloutLoop

        from weightwire.integrations.trl._rollouts import TaggingLoop

        if worker._loop_cls is _AsyncRolloutLoop:
            worker._loop_cls = TaggingLoop
        elif not issubclass(worker._loop_cls, TaggingLoop):
            _log.warning(
                "rollouts of %s carry the version that was newest when they began, not the one that made them; derive "
                "it from weightwire.integrations.trl.TaggingLoop",
                worker._loop_cls.__name__,
            )

    @property
    def publisher(self) -> Publisher | None:
        """The publisher while a training runs."""
        return self._publisher

    @property
    def version(self) -> int | None:
        """The last version that was published by this object."""
        return self._version

    # --- what TRL calls, on the main process ---

    def init_weight_transfer(self) -> None:
        if self._trainer is None:
            raise InvalidArgumentError("the trainer is not known: call attach(trainer) before trainer.train()")
        model = self._model()
        base = model.get_base_model() if is_peft(model) else model
        leftover, self._publisher = self._publisher, None
        close_leftover(leftover)
        options: PublisherOptions = {
            "dtype": self._dtype,
            "lora": "adapter",  # the base model has none
            "tokenizer": self._trainer.processing_class,
            "distributed": False,  # TRL puts the weights together, and calls the main process alone
            "optimizer": self._trainer.optimizer if self._background and not is_peft(model) else None,
            **self._options,
        }
        self._publisher = Publisher(self._run, base, **options)
        self._publish_log = PublishLog()
        self._version = None
        self._ticket = None

    def pause(self) -> None:
        """Does nothing, because servers pull and need no pause."""

    def send_weights(self, iterator: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Publishes, and returns once the weights may change again. Weights that lie whole in this process are read
        where they are, and in the background if that was asked for. Those of a sharded model are put together for
        this call alone, so each is rounded as it comes: `dtype` copies of all of them, in host memory, until it
        returns.
        """
        publisher = self._publisher
        if publisher is None:
            raise InvalidArgumentError("weights cannot be sent before init_weight_transfer()")
        model = self._model()
        places = {parameter.data_ptr() for parameter in model.parameters() if _is_whole(parameter)}
        sent: dict[str, torch.Tensor] = {}
        moved = False
        for name, tensor in iterator:
            if tensor.data_ptr() in places:
                sent[name] = tensor
            else:
                sent[name] = self._to_host(name, tensor)
                moved = True
        # As a module where it can be: tied weights and what is not trained are known there.
        whole = not moved and not is_peft(model)
        if not whole:
            _refuse_frozen(model, sent)
            sent |= {
                name: self._to_host(name, buffer) for name, buffer in _buffers_of(model).items() if name not in sent
            }
        step = self._trainer.state.global_step
        known = self._version if self._ticket is None else self._ticket.version
        # The first one says which version the others follow.
        background = self._background and whole and known is not None
        self._ticket = self._publish_log.publish(publisher, step, model if whole else sent, background=background)
        # While it is read, the next one: each step makes one.
        self._version = known + 1 if background and known is not None else self._ticket.version

    def resume(self) -> None:
        # TRL counts one more after this call, and is then at the number of the version.
        if self._version is not None:
            self._trainer.model_version = self._version - 1

    def destroy(self) -> None:
        """Waits until all versions are sent; after an error, only for some time."""
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            publisher.__exit__(*sys.exc_info())

    def _model(self) -> Any:
        return self._trainer.accelerator.unwrap_model(self._trainer.model)

    def _to_host(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        exact = bool(roles_of(self._model(), {name: tensor}, self._dtype).exact)
        if exact or self._dtype is None or isinstance(self._dtype, Fp8) or not tensor.is_floating_point():
            return tensor.to("cpu", copy=True)
        return tensor.to(torch_dtype(parse_dtype(self._dtype))).to("cpu", copy=False)


class _LogCosts(TrainerCallback):
    """Adds the cost of publishing to the trainer's log."""

    def __init__(self, transfer: WeightTransfer) -> None:
        self._transfer = transfer

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._transfer._publish_log.write_to(kwargs.get("logs"), state.log_history)


def _is_whole(parameter: torch.Tensor) -> bool:
    from torch.distributed.tensor import DTensor

    return not isinstance(parameter, DTensor)


def _buffers_of(model: Any) -> dict[str, torch.Tensor]:
    """The buffers of a checkpoint, which TRL does not send. All ranks have the same."""
    if is_peft(model):
        model = model.get_base_model()
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return {
        name.replace(".base_layer.", "."): tensor
        for name, tensor in model.state_dict().items()
        if name not in parameters and _is_whole(tensor) and "lora_" not in name
    }


def _refuse_frozen(model: Any, sent: dict[str, torch.Tensor]) -> None:
    """Raises for a sharded model with frozen parameters, because TRL gathers only trained ones on one rank."""
    if is_peft(model):
        return
    left_out = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
    if left_out:
        raise InvalidArgumentError(
            f"{len(left_out)} parameters are frozen (the first is '{left_out[0]}'), and TRL does not send those of a "
            "sharded model: publish from a model that is whole on each rank"
        )
