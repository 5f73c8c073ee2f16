"""The tensors of a model as they are published: under the names that its checkpoints use, each tensor once."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from weightwire._conversion import CoreTensor, LazyTensor, core_tensor
from weightwire._dtensor import local_of, whole_of
from weightwire._dtypes import is_dense, is_torch_tensor, parse_dtype
from weightwire._fp8 import Fp8, fp8_tensors
from weightwire._lora import Lora, adapter_tensors, is_peft, merged_tensors
from weightwire.errors import InvalidArgumentError


class ModelState(NamedTuple):
    """All tensors of one call of publish, for the core."""

    tensors: list[CoreTensor]
    aliases: dict[str, str]
    """{second name of a tied tensor: the name that is kept}"""
    watched: dict[str, Any]
    """Tensors that the core reads in place, so a write to them during the read must be noticed."""
    read_in_background: bool
    """Whether the model may compute while the core reads."""


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


def _memory_key(value: Any) -> tuple[Any, ...] | None:
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
        key = _memory_key(local_of(tensor))
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


def _plain_name(name: str) -> str:
    """Removes what torch.compile and activation checkpointing add to names, of the whole model or of a layer."""
    if not any(wrapper in name for wrapper in _WRAPPERS):
        return name
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def plain_names(tensors: Mapping[str, Any]) -> dict[str, Any]:
    plain = {_plain_name(name): tensor for name, tensor in tensors.items()}
    if len(plain) != len(tensors):
        raise InvalidArgumentError(
            f"two tensors have the same name apart from torch's wrappers ({', '.join(_WRAPPERS)})"
        )
    return plain


def _refuse_gathered(model: Any) -> None:
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


def tensors_of(model: Any, lora: Lora = "adapter") -> tuple[dict[str, Any], dict[str, str]]:
    """The tensors by name, and {second name of a tied tensor: kept name}."""
    check_is_model(model)
    second_names: list[re.Pattern[str]] | None = None
    if isinstance(model, Mapping):
        check_names(model)
        tensors = plain_names(model)
    elif is_peft(model := unwrap(model)):
        _refuse_gathered(model)
        tensors = plain_names(adapter_tensors(model) if lora == "adapter" else merged_tensors(model))
        second_names = _patterns(model.get_base_model(), "_tied_weights_keys")
    else:
        _refuse_gathered(model)
        ignored = _patterns(model, "_keys_to_ignore_on_save")
        tensors = {
            name: tensor
            for name, tensor in plain_names(model.state_dict()).items()
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
        plain = _plain_name(name).removesuffix(".base_layer")  # of an adapter
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
    rest = dtype if fp8 is None else fp8.rest
    to = None if rest is None else parse_dtype(rest)
    found: list[CoreTensor] = []
    for name, tensor in tensors.items():
        if fp8 is not None and fp8.quantizes(name, name in roles.linear):
            found += fp8_tensors(name, tensor, fp8)
            continue
        if fp8 is not None and name in roles.stacked and not fp8.keeps(name):
            raise InvalidArgumentError(
                f"'{name}' holds several matrices, and fp8 checkpoints have each on its own: publish them one by one, "
                "or keep them as they are (Fp8(keep=...))"
            )
        found.append(core_tensor(name, tensor, None if name in roles.exact else to, in_background=in_background))
    return found


_LARGEST_BUFFER = 1 << 16  # elements


def _copy_buffers(model: Any, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors, with a module's buffers copied, because a forward pass may change them. A mapping does not say which
    tensors are buffers, so all its small ones are copied."""
    if _is_module(model):
        copied = {_memory_key(local_of(buffer)) for buffer in unwrap(model).buffers()} - {None}
    else:
        small = (tensor for tensor in tensors.values() if math.prod(getattr(tensor, "shape", ())) <= _LARGEST_BUFFER)
        copied = {_memory_key(tensor) for tensor in small} - {None}
    result = {}
    for name, tensor in tensors.items():
        copy = getattr(tensor, "clone", None) or getattr(tensor, "copy", None)
        result[name] = copy() if copy is not None and _memory_key(tensor) in copied else tensor
    return result


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
    read = _copy_buffers(model, local) if in_background else local
    watched = {name: originals[name] for name in local if read[name] is local[name]}  # copies cannot change
    return ModelState(core_tensors(read, dtype, roles, in_background=in_background), aliases, watched, in_background)


def state_of(
    model: Any, dtype: Any, lora: Lora = "adapter", *, known: Any = None, in_background: bool = False
) -> ModelState:
    """The state of a model that is whole in this process. `known`: the module whose tensors a mapping has, if any."""
    tensors, aliases = tensors_of(model, lora)
    roles = roles_of(model, tensors, dtype, known)
    whole = {name: whole_of(name, tensor) for name, tensor in tensors.items()}
    return make_state(model, whole, tensors, dtype, roles, aliases, in_background=in_background)
