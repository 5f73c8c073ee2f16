"""What a model consists of when it is published: names as in its checkpoints, each tensor once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from weightwire._arrays import bits_of, named_dtype, place_of
from weightwire._lora import Lora, adapter_tensors, is_peft, merged_tensors
from weightwire._published import Fp8, Item, Lazy, fp8_items, item_of
from weightwire._shards import local_of, whole_of
from weightwire.errors import InvalidArgumentError


class State(NamedTuple):
    """For the core: each tensor, and {second name of a tied tensor: kept name}."""

    tensors: list[Item]
    aliases: dict[str, str]


def unwrap(model: Any) -> Any:
    """The module inside what torch.compile and data parallelism put around it."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and type(model).__name__ in ("DistributedDataParallel", "DataParallel"):
            inner = model.module
        if inner is None:
            return model
        model = inner


def _is_module(model: Any) -> bool:
    return hasattr(model, "state_dict") and not isinstance(model, Mapping)


def _patterns(model: Any, attribute: str) -> list[re.Pattern[str]]:
    # A list of names, or (transformers 5) a dict of second name -> kept name; both may be regular expressions.
    keys = getattr(model, attribute, None) or ()
    return [re.compile(key) for key in keys]


def _ties(tensors: Mapping[str, Any], second_names: list[re.Pattern[str]]) -> dict[str, str]:
    """Second names of tensors that are the same memory."""
    groups: dict[tuple[Any, ...], list[str]] = {}
    for name, tensor in tensors.items():
        place = place_of(local_of(tensor))
        if place is not None:
            groups.setdefault(place, []).append(name)
    aliases = {}
    for names in groups.values():
        if len(names) == 1:
            continue
        # As save_pretrained and safetensors' save_model do: not one that the model calls a second name, else the first
        # in order.
        kept = min(names, key=lambda name: (any(pattern.search(name) for pattern in second_names), name))
        aliases.update({name: kept for name in names if name != kept})
    return aliases


def _check_names(names: Iterable[Any]) -> None:
    for name in names:
        if not isinstance(name, str):
            raise InvalidArgumentError(f"names of tensors are strings, and {name!r} is a {type(name).__name__}")


def tensors_of(model: Any, lora: Lora = "adapter") -> tuple[dict[str, Any], dict[str, str]]:
    """The tensors by name, and the aliases."""
    if isinstance(model, Mapping):
        _check_names(model)
        tensors = dict(model)
        aliases = _ties(tensors, [])
    elif is_peft(model := unwrap(model)):
        tensors = adapter_tensors(model) if lora == "adapter" else merged_tensors(model)
        aliases = _ties(tensors, _patterns(model.get_base_model(), "_tied_weights_keys"))
    elif _is_module(model):
        ignored = _patterns(model, "_keys_to_ignore_on_save")
        tensors = {
            name: tensor
            for name, tensor in model.state_dict().items()
            if not any(pattern.search(name) for pattern in ignored)
        }
        aliases = _ties(tensors, _patterns(model, "_tied_weights_keys"))
    else:
        raise InvalidArgumentError(
            f"cannot publish a {type(model).__name__}: give a torch module, or names and arrays as a mapping"
        )
    return {name: tensor for name, tensor in tensors.items() if name not in aliases}, aliases


def linear_names(model: Any, tensors: Mapping[str, Any]) -> set[str]:
    """The names of linear layers' weights: of a module, by its layers; else by what such names end in."""
    matrices = {name for name, tensor in tensors.items() if len(tensor.shape) == 2 and not isinstance(tensor, Lazy)}
    if isinstance(model, Mapping):
        return {name for name in matrices if name.endswith("_proj.weight")}
    import torch

    layers = {name for name, module in unwrap(model).named_modules() if isinstance(module, torch.nn.Linear)}
    return {name for name in matrices if name.removesuffix(".weight") in layers}


def items_of(tensors: Mapping[str, Any], dtype: Any, linear: set[str]) -> list[Item]:
    """`dtype`: what floating-point tensors are rounded to, as torch does, or an Fp8; None leaves them. `linear`: the
    names that an Fp8 makes fp8."""
    if not isinstance(dtype, Fp8):
        to = None if dtype is None else named_dtype(dtype)
        return [item_of(name, tensor, to) for name, tensor in tensors.items()]
    items: list[Item] = []
    for name, tensor in tensors.items():
        if dtype.quantizes(name, name in linear):
            items += fp8_items(name, tensor, dtype)
        else:
            items.append(item_of(name, tensor, named_dtype(dtype.rest)))
    return items


def state_of(model: Any, dtype: Any, lora: Lora = "adapter") -> State:
    """All of a model, for the core."""
    tensors, aliases = tensors_of(model, lora)
    linear = linear_names(model, tensors) if isinstance(dtype, Fp8) else set()
    tensors = {name: whole_of(name, tensor) for name, tensor in tensors.items()}
    return State(items_of(tensors, dtype, linear), aliases)


def target_of(target: Mapping[str, Any]) -> list[tuple[str, str, tuple[int, ...], Any]]:
    """Arrays to be written to; of tied ones each name, since both must show the new bits."""
    _check_names(target)
    return [(name, *bits_of(name, array, writable=True)) for name, array in target.items()]
