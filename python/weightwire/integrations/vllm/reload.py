"""Loading whole modules anew with the model's own loader, for those whose parameters are not what the checkpoint holds.

vLLM reloads layer by layer: it makes a module's parameters as they were before its first load, fills them, does what
is done after loading, and puts the result where the kernels look. All tensors of a module must come, or the rest of it
is garbage. No step may run meanwhile.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator
from typing import Any

import torch


def reload_modules(model: torch.nn.Module, vllm_config: Any, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

    with set_current_vllm_config(vllm_config), _quiet():
        initialize_layerwise_reload(model)
        model.load_weights(iter(tensors))
        finalize_layerwise_reload(model, vllm_config.model_config)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """vLLM warns of each module that gets no weights, which is most of them."""
    logger = logging.getLogger("vllm.model_executor.model_loader.reload.layerwise")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
