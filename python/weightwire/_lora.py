"""Models with adapters (PEFT): the adapters alone, or merged into the weights they adapt."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from weightwire._conversion import LazyCache, LazyTensor
from weightwire.errors import InvalidArgumentError

Lora = Literal["adapter", "merged"]


def is_peft(model: Any) -> bool:
    return hasattr(model, "peft_config") and hasattr(model, "get_base_model")


def adapter_tensors(model: Any) -> dict[str, Any]:
    """The adapter's tensors, under the names that PEFT's `save_pretrained` uses."""
    from peft import get_peft_model_state_dict

    return dict(get_peft_model_state_dict(model, adapter_name=_only_adapter(model)))


def save_adapter_config(model: Any, directory: Path) -> None:
    config = model.peft_config[_only_adapter(model)]
    before = config.inference_mode
    config.inference_mode = True  # as save_pretrained writes it: to be loaded, not trained
    try:
        config.save_pretrained(directory)
    finally:
        config.inference_mode = before


def _only_adapter(model: Any) -> str:
    active = _active(model)
    if len(active) != 1:
        raise InvalidArgumentError(f"adapters are published one at a time, and {active} are active")
    return str(active[0])


def merged_tensors(model: Any) -> dict[str, Any]:
    """The tensors that merge_and_unload would leave. Merged ones are made when they are read."""
    base = model.get_base_model()
    adapted = {name: module for name, module in base.named_modules() if hasattr(module, "get_delta_weight")}
    _refuse_unmergeable(base, _active(model))
    tensors = {}
    cache = LazyCache()
    for name, tensor in base.state_dict().items():
        owner, _, leaf = name.rpartition(".")
        if any(part.startswith("lora_") for part in name.split(".")):
            if "lora_magnitude_vector" in name:
                raise InvalidArgumentError(f"'{name}' cannot be merged while it is trained: DoRA is not supported")
            continue
        if ".original_module." in name:
            continue
        if ".modules_to_save." in name:
            module, _, rest = name.partition(".modules_to_save.")
            adapter, _, leaf = rest.partition(".")
            if adapter in _active(model):
                tensors[f"{module}.{leaf}"] = tensor
            continue
        module_name = owner.removesuffix(".base_layer")
        plain = f"{module_name}.{leaf}"
        module = adapted.get(module_name)
        if module is None or owner == module_name or leaf != "weight":
            tensors[plain] = tensor
            continue
        tensors[plain] = _merged(module, tensor, _active(model), cache)
    return tensors


def _refuse_unmergeable(base: Any, adapters: list[str]) -> None:
    """Raises for adapters whose merge would be incomplete or wrong."""
    for name, module in base.named_modules():
        scaling = getattr(module, "scaling", None)  # of a layer with adapters; others call a number so
        here = [adapter for adapter in adapters if isinstance(scaling, dict) and adapter in scaling]
        if not here or getattr(module, "merged", False):
            continue

        def refuse(why: str, name: str = name) -> InvalidArgumentError:
            return InvalidArgumentError(
                f"the adapter of '{name}' cannot be merged while it is trained: {why}; publish the adapters alone "
                '(lora="adapter")'
            )

        if hasattr(module, "parameter_name"):
            raise refuse("it adapts a parameter that is no layer's weight (target_parameters)")
        if not hasattr(module, "get_delta_weight"):
            raise refuse(f"{type(module).__name__} does not tell what it adds")
        if any(getattr(module, "lora_variant", {}).get(adapter) is not None for adapter in here):
            raise refuse("it is a variant of LoRA (DoRA and others)")
        if any(getattr(module, "lora_bias", {}).get(adapter) for adapter in here):
            raise refuse("it has a bias (lora_bias)")
        if any(hasattr(parameter, "placements") for parameter in module.parameters()):
            raise refuse("it is sharded over several ranks")


def _active(model: Any) -> list[str]:
    active = model.active_adapters
    return list(active() if callable(active) else active)


def _merged(module: Any, weight: Any, adapters: list[str], cache: LazyCache) -> Any:
    here = [adapter for adapter in adapters if adapter in getattr(module, "scaling", {})]
    if module.merged or not here:
        return weight

    def make() -> Any:
        import torch

        with torch.no_grad():
            merged = weight.detach().clone()
            for adapter in here:
                merged += module.get_delta_weight(adapter)
            return merged

    return LazyTensor(make, weight.dtype, tuple(weight.shape), weight.device, cache)
