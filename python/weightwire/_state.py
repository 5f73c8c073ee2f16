"""What a model consists of when it is published: names as in its checkpoints, each tensor once."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from weightwire._arrays import Bits, bits_of, is_torch_tensor
from weightwire.errors import InvalidArgumentError


class State(NamedTuple):
    """For the core: (name, dtype, shape, bytes) of each tensor, and {second name of a tied tensor: kept name}."""

    tensors: list[tuple[str, str, tuple[int, ...], Any]]
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
        if is_torch_tensor(tensor) and tensor.numel() > 0 and tensor.device.type != "meta":
            place = (tensor.device, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
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


def tensors_of(model: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """The tensors by name, and the aliases."""
    if isinstance(model, Mapping):
        tensors = dict(model)
        aliases = _ties(tensors, [])
    elif _is_module(model):
        model = unwrap(model)
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


def _converted(tensor: Any, dtype: Any) -> Any:
    if dtype is None or not is_torch_tensor(tensor) or not tensor.is_floating_point():
        return tensor
    return tensor.detach().to(dtype)


def state_of(model: Any, dtype: Any) -> State:
    """`dtype`: what floating-point torch tensors are rounded to, as `tensor.to(dtype)` does; None leaves them."""
    tensors, aliases = tensors_of(model)
    items = []
    for name, tensor in tensors.items():
        bits: Bits = bits_of(name, _converted(tensor, dtype))
        items.append((name, *bits))
    return State(items, aliases)


def target_of(target: Mapping[str, Any]) -> list[tuple[str, str, tuple[int, ...], Any]]:
    """Arrays to be written to; of tied ones each name, since both must show the new bits."""
    return [(name, *bits_of(name, array, writable=True)) for name, array in target.items()]
