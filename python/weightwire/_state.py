"""What a model consists of when it is published: names as in its checkpoints, each tensor once."""

from __future__ import annotations

import math
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
    read: dict[str, Any]
    """What they are read from, and others may change."""
    goes_on: bool
    """Whether it may be read while the model computes."""


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
    return hasattr(model, "state_dict") and hasattr(model, "named_parameters") and not isinstance(model, Mapping)


def _patterns(model: Any, attribute: str) -> list[re.Pattern[str]]:
    # A list of names, or (transformers 5) a dict of second name -> kept name; both may be regular expressions.
    keys = getattr(model, attribute, None) or ()
    return [re.compile(key) for key in keys]


# What save_pretrained calls second names, by the names alone: the output layer's first of all, then those of an
# encoder and a decoder that share a table with each other.
_OUTPUT_LAYERS = re.compile(r"(^|\.)(lm_head|embed_out|output_layer|output_projection|output|decoder)\.(weight|bias)$")
_SHARED_TABLES = re.compile(r"(^|\.)(encoder|decoder)\.(embed_tokens|wte)\.weight$")


def _rank_by_name(name: str) -> int:
    return 2 if _OUTPUT_LAYERS.search(name) else 1 if _SHARED_TABLES.search(name) else 0


def _ties(tensors: Mapping[str, Any], second_names: list[re.Pattern[str]] | None) -> dict[str, str]:
    """Second names of tensors that are the same memory. `second_names`: what the model calls so; None if nobody knows
    the model."""
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
        if second_names is None:
            kept = min(names, key=lambda name: (_rank_by_name(name), name))
        else:
            kept = min(names, key=lambda name: (any(pattern.search(name) for pattern in second_names), name))
        aliases.update({name: kept for name in names if name != kept})
    return aliases


def _check_names(names: Iterable[Any]) -> None:
    for name in names:
        if not isinstance(name, str):
            raise InvalidArgumentError(f"names of tensors are strings, and {name!r} is a {type(name).__name__}")


_WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module")


def _plain_name(name: str) -> str:
    """Without what torch.compile and activation checkpointing put into names, of the whole model or of a layer."""
    if not any(wrapper in name for wrapper in _WRAPPERS):
        return name
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def _plain_names(tensors: Mapping[str, Any]) -> dict[str, Any]:
    plain = {_plain_name(name): tensor for name, tensor in tensors.items()}
    if len(plain) != len(tensors):
        raise InvalidArgumentError(
            f"tensors would get the same name without what torch puts there ({', '.join(_WRAPPERS)})"
        )
    return plain


def _refuse_gathered(model: Any) -> None:
    """Ways to shard that put weights together only for a moment: between steps, a module does not hold its own."""
    if any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules()):
        raise InvalidArgumentError(
            "a model in FullyShardedDataParallel (FSDP1) cannot be published: use fully_shard (FSDP2), or give a "
            "mapping of whole tensors"
        )
    if any(hasattr(parameter, "ds_shape") for parameter in model.parameters()):
        raise InvalidArgumentError(
            "a model whose parameters DeepSpeed has partitioned (ZeRO-3) cannot be published: use fully_shard (FSDP2) "
            "or ZeRO-2, or give a mapping of whole tensors"
        )


def refuse_what_is_no_model(model: Any) -> None:
    if not isinstance(model, Mapping) and not _is_module(unwrap(model)):
        raise InvalidArgumentError(
            f"cannot publish a {type(model).__name__}: give a torch module, or names and arrays as a mapping"
        )


def tensors_of(model: Any, lora: Lora = "adapter") -> tuple[dict[str, Any], dict[str, str]]:
    """The tensors by name, and the aliases."""
    refuse_what_is_no_model(model)
    second_names: list[re.Pattern[str]] | None = None
    if isinstance(model, Mapping):
        _check_names(model)
        tensors = _plain_names(model)
    elif is_peft(model := unwrap(model)):
        _refuse_gathered(model)
        tensors = _plain_names(adapter_tensors(model) if lora == "adapter" else merged_tensors(model))
        second_names = _patterns(model.get_base_model(), "_tied_weights_keys")
    else:
        _refuse_gathered(model)
        ignored = _patterns(model, "_keys_to_ignore_on_save")
        tensors = {
            name: tensor
            for name, tensor in _plain_names(model.state_dict()).items()
            if not any(pattern.search(name) for pattern in ignored)
        }
        second_names = _patterns(model, "_tied_weights_keys")
    if not tensors:
        raise InvalidArgumentError(f"there is nothing to publish: the {type(model).__name__} has no tensors")
    aliases = _ties(tensors, second_names)
    return {name: tensor for name, tensor in tensors.items() if name not in aliases}, aliases


class Roles(NamedTuple):
    """What tensors are in their model, as far as it decides what they are published as."""

    linear: frozenset[str] = frozenset()
    """Weights of linear layers."""
    stacked: frozenset[str] = frozenset()
    """Several matrices in one tensor: the experts of a layer."""
    exact: frozenset[str] = frozenset()
    """What the model wants left in full precision, whatever the rest is."""


def roles_of(model: Any, tensors: Mapping[str, Any], dtype: Any, known: Any = None) -> Roles:
    """As far as `dtype` makes a difference. Of a module, by its layers; of a mapping, by those of the module `known`,
    whose tensors it holds, or if there is none by what such names end in."""
    if dtype is None:
        return Roles()
    module = unwrap(known if isinstance(model, Mapping) else model)
    if is_peft(module):
        module = module.get_base_model()
    # As transformers applies them: to whole parts of a name.
    strict = getattr(module, "_keep_in_fp32_modules_strict", None) or ()
    patterns = [re.compile(rf"(^|\.){part}($|\.)") for part in strict]
    exact = frozenset(name for name in tensors if any(pattern.search(name) for pattern in patterns))
    if not isinstance(dtype, Fp8):
        return Roles(exact=exact)
    ranks = {name: len(getattr(tensor, "shape", ())) for name, tensor in tensors.items()}
    if not _is_module(module):
        return Roles(
            frozenset(name for name, rank in ranks.items() if rank == 2 and name.endswith("_proj.weight")),
            frozenset(name for name, rank in ranks.items() if rank == 3 and "experts" in name),
        )
    import torch

    layers, convolutions = set(), set()
    for name, layer in module.named_modules():
        plain = _plain_name(name).removesuffix(".base_layer")  # of an adapter
        if isinstance(layer, torch.nn.Linear):
            layers.add(plain)
        elif isinstance(layer, torch.nn.modules.conv._ConvNd):
            convolutions.add(plain)
    return Roles(
        frozenset(name for name, rank in ranks.items() if rank == 2 and name.removesuffix(".weight") in layers),
        frozenset(name for name, rank in ranks.items() if rank == 3 and name.rpartition(".")[0] not in convolutions),
        exact,
    )


def items_of(tensors: Mapping[str, Any], dtype: Any, roles: Roles, *, goes_on: bool = False) -> list[Item]:
    """`dtype`: what floating-point tensors are rounded to, as torch does, or an Fp8; None leaves them. `goes_on`: the
    owner computes while they are read."""
    fp8 = dtype if isinstance(dtype, Fp8) else None
    rest = dtype if fp8 is None else fp8.rest
    to = None if rest is None else named_dtype(rest)
    items: list[Item] = []
    for name, tensor in tensors.items():
        if fp8 is not None and fp8.quantizes(name, name in roles.linear):
            items += fp8_items(name, tensor, fp8)
            continue
        if fp8 is not None and name in roles.stacked and not fp8.keeps(name):
            raise InvalidArgumentError(
                f"'{name}' holds several matrices, and fp8 checkpoints have each on its own: publish them one by one, "
                "or keep them as they are (Fp8(keep=...))"
            )
        items.append(item_of(name, tensor, None if name in roles.exact else to, goes_on=goes_on))
    return items


_LARGEST_BUFFER = 1 << 16  # elements


def own_buffers(model: Any, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors, with copies of a module's buffers: a forward pass may change those. In a mapping they are not known,
    so all that are small are copied."""
    if _is_module(model):
        places = {place_of(local_of(buffer)) for buffer in unwrap(model).buffers()} - {None}
    else:
        small = (tensor for tensor in tensors.values() if math.prod(getattr(tensor, "shape", ())) <= _LARGEST_BUFFER)
        places = {place_of(tensor) for tensor in small} - {None}
    copied = {}
    for name, tensor in tensors.items():
        copy = getattr(tensor, "clone", None) or getattr(tensor, "copy", None)
        copied[name] = copy() if copy is not None and place_of(tensor) in places else tensor
    return copied


def watched(tensors: Mapping[str, Any], held: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Those that are read where they lie: not copies, which are nobody's to change. A DTensor itself and not what is
    held of it, as torch counts what is written to it."""
    return {name: tensors[name] for name in held if own[name] is held[name]}


def state_of(model: Any, dtype: Any, lora: Lora = "adapter", *, known: Any = None, goes_on: bool = False) -> State:
    """All of a model, for the core. `known`: the module that a mapping is of, if there is one. `goes_on`: the model
    computes while it is read; not for one that has Lazy tensors, whose adapters may be merged by others meanwhile."""
    tensors, aliases = tensors_of(model, lora)
    roles = roles_of(model, tensors, dtype, known)
    whole = {name: whole_of(name, tensor) for name, tensor in tensors.items()}
    goes_on = goes_on and not any(isinstance(tensor, Lazy) for tensor in whole.values())
    own = own_buffers(model, whole) if goes_on else whole
    return State(items_of(own, dtype, roles, goes_on=goes_on), aliases, watched(tensors, whole, own), goes_on)


def target_of(target: Mapping[str, Any]) -> list[tuple[str, str, tuple[int, ...], Any]]:
    """Arrays to be written to; of tied ones each name, since both must show the new bits."""
    _check_names(target)
    return [(name, *bits_of(name, array, writable=True)) for name, array in _plain_names(target).items()]
