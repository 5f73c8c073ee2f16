"""The tensors of a model as they are published: under the names that its checkpoints use, each tensor once."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from weightwire import _core
from weightwire._conversion import CoreTensor, LazyTensor, core_tensor
from weightwire._dtensor import local_of, whole_of
from weightwire._dtypes import is_dense, is_torch_tensor, parse_dtype
from weightwire._fp8 import Fp8, fp8_tensors
from weightwire._lora import Lora, adapter_tensors, is_peft, merged_tensors
from weightwire._write_check import WriteCheck
from weightwire.errors import InvalidArgumentError


class ModelState(NamedTuple):
    """All tensors of one call of publish, for the core."""

    prepared: _core.PreparedState
    check: WriteCheck | None
    """Tells what was written to during the read; set if the model may compute while the core reads."""
    copies: dict[str, Any]
    """Copies, by name, that the core reads in place of tensors that may be written to."""


def unwrap(model: Any) -> Any:
    """Removes the wrappers that torch.compile and data parallelism put around a module."""
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


# save_pretrained drops some tied names: first the output layer's, then those of an encoder and a decoder that share a
# table.
_OUTPUT_LAYERS = re.compile(r"(^|\.)(lm_head|embed_out|output_layer|output_projection|output|decoder)\.(weight|bias)$")
_SHARED_TABLES = re.compile(r"(^|\.)(encoder|decoder)\.(embed_tokens|wte)\.weight$")


def _rank_by_name(name: str) -> int:
    return 2 if _OUTPUT_LAYERS.search(name) else 1 if _SHARED_TABLES.search(name) else 0


def memory_key(value: Any) -> tuple[Any, ...] | None:
    """Equal for arrays that are the same elements of the same memory; None if unknown, or if there are no elements."""
    if is_torch_tensor(value):
        if not is_dense(value) or value.numel() == 0 or value.device.type == "meta":
            return None
        seen_as = (value.dtype, value.is_conj(), value.is_neg())
        return (value.device, value.data_ptr(), seen_as, value.shape, value.stride())
    if isinstance(value, np.ndarray) and value.size > 0:
        return ("host", value.__array_interface__["data"][0], value.dtype, value.shape, value.strides)
    return None


def _ties(tensors: Mapping[str, Any], second_names: list[re.Pattern[str]] | None) -> dict[str, str]:
    """{second name: kept name} of tensors that are the same memory. `second_names`: the names that the model would
    drop; None if the model is not known."""
    groups: dict[tuple[Any, ...], list[str]] = {}
    for name, tensor in tensors.items():
        key = memory_key(local_of(tensor))
        if key is not None:
            groups.setdefault(key, []).append(name)
    aliases = {}
    for names in groups.values():
        if len(names) == 1:
            continue
        # save_pretrained and safetensors' save_model also keep the first name in order that the model would not drop.
        if second_names is None:
            kept = min(names, key=lambda name: (_rank_by_name(name), name))
        else:
            kept = min(names, key=lambda name: (any(pattern.search(name) for pattern in second_names), name))
        aliases.update({name: kept for name in names if name != kept})
    return aliases


def check_names(names: Iterable[Any]) -> None:
    for name in names:
        if not isinstance(name, str):
            raise InvalidArgumentError(f"names of tensors are strings, and {name!r} is a {type(name).__name__}")


_WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module")


def plain_name(name: str) -> str:
    """Removes what torch.compile and activation checkpointing add to names, of the whole model or of a layer."""
    if not any(wrapper in name for wrapper in _WRAPPERS):
        return name
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def plain_names(tensors: Mapping[str, Any]) -> dict[str, Any]:
    plain = {plain_name(name): tensor for name, tensor in tensors.items()}
    if len(plain) != len(tensors):
        raise InvalidArgumentError(
            f"two tensors have the same name apart from torch's wrappers ({', '.join(_WRAPPERS)})"
        )
    return plain


def refuse_gathered(model: Any) -> None:
    """Raises for ways to shard that gather weights only for a step, because between steps a module has no weights."""
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


def check_is_model(model: Any) -> None:
    if not isinstance(model, Mapping) and not _is_module(unwrap(model)):
        raise InvalidArgumentError(
            f"cannot publish a {type(model).__name__}: give a torch module, or names and arrays as a mapping"
        )


def tensors_of(
    model: Any, lora: Lora = "adapter", known: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], dict[str, str]]:
    """The tensors by name, and {second name of a tied tensor: kept name}. `known`: what the mapping or the module's
    state_dict() has, if it was asked before."""
    check_is_model(model)
    second_names: list[re.Pattern[str]] | None = None
    if isinstance(model, Mapping):
        named = model if known is None else known
        check_names(named)
        tensors = plain_names(named)
    elif is_peft(model := unwrap(model)):
        refuse_gathered(model)
        tensors = plain_names(adapter_tensors(model) if lora == "adapter" else merged_tensors(model))
        second_names = _patterns(model.get_base_model(), "_tied_weights_keys")
    else:
        refuse_gathered(model)
        ignored = _patterns(model, "_keys_to_ignore_on_save")
        tensors = {
            name: tensor
            for name, tensor in plain_names(model.state_dict() if known is None else known).items()
            if not any(pattern.search(name) for pattern in ignored)
        }
        second_names = _patterns(model, "_tied_weights_keys")
    if not tensors:
        raise InvalidArgumentError(f"there is nothing to publish: the {type(model).__name__} has no tensors")
    aliases = _ties(tensors, second_names)
    return {name: tensor for name, tensor in tensors.items() if name not in aliases}, aliases


class TensorRoles(NamedTuple):
    """The names of tensors that `dtype` treats in a special way."""

    linear: frozenset[str] = frozenset()
    """Weights of linear layers."""
    stacked: frozenset[str] = frozenset()
    """Several matrices in one tensor: the experts of a layer."""
    exact: frozenset[str] = frozenset()
    """Tensors that the model keeps in full precision."""


def roles_of(model: Any, tensors: Mapping[str, Any], dtype: Any, known: Any = None) -> TensorRoles:
    """The roles that matter for `dtype`. They come from the layers of a module; for a mapping from the module `known`,
    whose tensors it has; and without one from the ends of the names."""
    if dtype is None:
        return TensorRoles()
    module = unwrap(known if isinstance(model, Mapping) else model)
    if is_peft(module):
        module = module.get_base_model()
    # transformers matches whole components of a name.
    strict = getattr(module, "_keep_in_fp32_modules_strict", None) or ()
    patterns = [re.compile(rf"(^|\.){part}($|\.)") for part in strict]
    exact = frozenset(name for name in tensors if any(pattern.search(name) for pattern in patterns))
    if not isinstance(dtype, Fp8):
        return TensorRoles(exact=exact)
    ranks = {name: len(getattr(tensor, "shape", ())) for name, tensor in tensors.items()}
    if not _is_module(module):
        return TensorRoles(
            frozenset(name for name, rank in ranks.items() if rank == 2 and name.endswith("_proj.weight")),
            frozenset(name for name, rank in ranks.items() if rank == 3 and "experts" in name),
        )
    import torch

    layers, convolutions = set(), set()
    for name, layer in module.named_modules():
        plain = plain_name(name).removesuffix(".base_layer")  # of an adapter
        if isinstance(layer, torch.nn.Linear):
            layers.add(plain)
        elif isinstance(layer, torch.nn.modules.conv._ConvNd):
            convolutions.add(plain)
    return TensorRoles(
        frozenset(name for name, rank in ranks.items() if rank == 2 and name.removesuffix(".weight") in layers),
        frozenset(name for name, rank in ranks.items() if rank == 3 and name.rpartition(".")[0] not in convolutions),
        exact,
    )


def core_tensors(
    tensors: Mapping[str, Any], dtype: Any, roles: TensorRoles, *, in_background: bool = False
) -> list[CoreTensor]:
    """Floating-point tensors are rounded to `dtype` as torch does, or quantized if it is an Fp8; None leaves them."""
    fp8 = dtype if isinstance(dtype, Fp8) else None
    rest = dtype if fp8 is None else fp8.dtype
    to = None if rest is None else parse_dtype(rest)
    found: list[CoreTensor] = []
    for name, tensor in tensors.items():
        if fp8 is not None and fp8.quantizes(name, name in roles.linear):
            found += fp8_tensors(name, tensor, fp8)
            continue
        if fp8 is not None and name in roles.stacked and not fp8.ignores(name):
            raise InvalidArgumentError(
                f"'{name}' holds several matrices, and fp8 checkpoints have each on its own: publish them one by one, "
                "or keep them as they are (Fp8(ignore=...))"
            )
        found.append(core_tensor(name, tensor, None if name in roles.exact else to, in_background=in_background))
    return found


_LARGEST_BUFFER = 1 << 16  # elements
_MOST_COPIED = 4 << 20  # bytes


def _copy_buffers(model: Any, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Copies of a module's buffers, by name, because a forward pass may change them. A mapping does not say which
    tensors are buffers, so the smallest are copied, apart from those that are trained."""
    if _is_module(model):
        buffers = {memory_key(local_of(buffer)) for buffer in unwrap(model).buffers()} - {None}
        chosen = [name for name, tensor in tensors.items() if memory_key(tensor) in buffers]
    else:
        small = [
            (getattr(tensor, "nbytes", 0), name)
            for name, tensor in tensors.items()
            if math.prod(getattr(tensor, "shape", ())) <= _LARGEST_BUFFER
            and not getattr(tensor, "requires_grad", False)
            and memory_key(tensor) is not None
        ]
        chosen, left = [], _MOST_COPIED
        for size, name in sorted(small):
            left -= size
            if left < 0:
                break
            chosen.append(name)
    makers = {name: getattr(tensors[name], "clone", None) or getattr(tensors[name], "copy", None) for name in chosen}
    return {name: make() for name, make in makers.items() if make is not None}


def make_state(
    model: Any,
    local: Mapping[str, Any],
    originals: Mapping[str, Any],
    dtype: Any,
    roles: TensorRoles,
    aliases: dict[str, str],
    *,
    in_background: bool,
) -> ModelState:
    """The state from the data that this process reads, `local`, and the model's tensors of the same names, `originals`.
    Those differ for a DTensor, whose writes torch counts on the DTensor itself.

    Lazy tensors are never read in the background, because other code may merge the adapters during the read.
    """
    in_background = in_background and not any(isinstance(tensor, LazyTensor) for tensor in local.values())
    copies = _copy_buffers(model, local) if in_background else {}
    check = None
    if in_background:
        watched = [name for name in local if name not in copies]  # copies cannot change
        check = WriteCheck.of(watched, [originals[name] for name in watched])
    published = core_tensors({**local, **copies}, dtype, roles, in_background=in_background)
    return ModelState(_core.PreparedState(published, aliases), check, copies)


def state_of(
    model: Any,
    dtype: Any,
    lora: Lora = "adapter",
    *,
    known: Any = None,
    in_background: bool = False,
    tensors: Mapping[str, Any] | None = None,
) -> ModelState:
    """The state of a model that is whole in this process. `known`: the module whose tensors a mapping has, if any.
    `tensors`: see `tensors_of`."""
    kept, aliases = tensors_of(model, lora, tensors)
    roles = roles_of(model, kept, dtype, known)
    whole = {name: whole_of(name, tensor) for name, tensor in kept.items()}
    return make_state(model, whole, kept, dtype, roles, aliases, in_background=in_background)


def rules_of(model: Any, known: Any) -> list[Any]:
    """What a module says about the names of its tensors: which are ties, are not saved or are kept exact. A copy, to
    be compared with later ones."""
    whose = unwrap(known if isinstance(model, Mapping) else model)
    modules = [unwrap(model), whose, whose.get_base_model() if is_peft(whose) else whose]
    rules = ("_tied_weights_keys", "_keys_to_ignore_on_save", "_keep_in_fp32_modules_strict")
    return [copy.copy(getattr(module, rule, None)) for module in modules for rule in rules]
