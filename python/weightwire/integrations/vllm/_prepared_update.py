"""The writes and the module reloads that a commit does in a worker."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def as_words(values: torch.Tensor) -> torch.Tensor:
    """The bits, as integers as wide as an element."""
    return values.view(_WORDS[values.element_size()])


def bits_differ(target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Returns a mask of the elements whose bits differ."""
    return as_words(target) != as_words(source.to(target.device))


@dataclass
class SparseWrite:
    """Writes some elements of one parameter, which is seen as flat words."""

    words: torch.Tensor
    positions: torch.Tensor
    new: torch.Tensor

    def write(self) -> None:
        self.words.index_copy_(0, self.positions, self.new)

    def differs(self) -> torch.Tensor:
        return (self.words.index_select(0, self.positions) != self.new).any()


@dataclass
class DenseWrite:
    """Writes a whole box of one parameter, from the same box of the checkpoint."""

    target: torch.Tensor
    source: torch.Tensor

    def write(self) -> None:
        self.target.copy_(self.source)

    def differs(self) -> torch.Tensor:
        return bits_differ(self.target, self.source).any()


@dataclass
class PreparedUpdate:
    """An update that is ready to be committed."""

    version: int
    writes: list[SparseWrite | DenseWrite] = field(default_factory=list)
    reload: list[str] = field(default_factory=list)
    """Tensors of the checkpoint to load again: all those of each affected module."""
    elements: int = 0


def reload_modules(model: torch.nn.Module, vllm_config: Any, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Loads whole modules again with the model's own loader, for parameters that are not what the checkpoint holds.

    vLLM reloads layer by layer: it makes a module's parameters as they were before its first load, fills them, repeats
    the processing after loading, and puts the result where the kernels read. REQUIRES: `tensors` has all tensors of
    each module, because the rest of a module would be garbage; and no step runs meanwhile.
    """
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

    with set_current_vllm_config(vllm_config), _quiet():
        initialize_layerwise_reload(model)
        model.load_weights(iter(tensors))
        finalize_layerwise_reload(model, vllm_config.model_config)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silences vLLM's warnings of modules that get no weights, which are most of them."""
    logger = logging.getLogger("vllm.model_executor.model_loader.reload.layerwise")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
