"""Which modules keep something made from their weights.

After loading, a module may keep what its kernels want: packed weights, products of two weights. Writing to its
parameters would leave that as it was. Such a module has something that the same module has not before: an attribute
that leads to data other than the model's own parameters, or to what cannot be looked into.
"""

from __future__ import annotations

import enum
import functools
import logging
import types
from typing import Any, NamedTuple

import torch

from weightwire.integrations.vllm._learned_map import storage_of

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, enum.Enum, type)
# They lead nowhere that weights are.
_OUTSIDE = (types.ModuleType, types.CodeType, logging.Logger, torch._ops.OpOverload, torch._ops.OpOverloadPacket)
# What torch.compile leaves at a module: code. Graphs get the parameters at each call and CUDA graphs read them where
# they lie, so what is written in place is seen. (Constants made of weights: see `has_frozen_weights`.)
_OF_THE_COMPILER = {
    *("aot_compiled_fn", "_aot_compilation_path", "_aot_cache_dir", "_compiled_bytecode", "_compiled_callable"),
    *("_bytecode_hook_handle", "_compiled_call_impl"),
}
_OF_TORCH = {"_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"}
# What leads to more objects than that is not looked into any further.
_MOST_OBJECTS = 10_000


class Derived(NamedTuple):
    state: set[str]
    """Modules that keep something made from weights, their own or those of modules within them: with what keeps it, all
    within are named."""
    kernels: set[str]
    """Others that have got an object which leads to nothing but parameters. Its kernels may want them in another
    order."""


def derived_state(live: torch.nn.Module, shadow: torch.nn.Module) -> Derived:
    before = dict(shadow.named_modules(remove_duplicate=False))
    storages = {storage_of(tensor) for tensor in [*live.parameters(), *live.buffers()]}
    found, kernels = [], set()
    for name, module in live.named_modules(remove_duplicate=False):
        if name not in before or _is_made_otherwise(module, before[name]):
            found.append(name)
        elif more := _more_objects(module, before[name]):
            if all(_leads_only_to(storages, value) for value in more):
                kernels.add(name)
            else:
                found.append(name)
    state = {
        name
        for name, _ in live.named_modules(remove_duplicate=False)
        for holder in found
        if name == holder or holder == "" or name.startswith(holder + ".")
    }
    return Derived(state, kernels - state)


def has_frozen_weights(vllm_config: Any) -> bool:
    """Whether the compiler may have made constants of weights, which then stay what they are."""
    compilation = getattr(vllm_config, "compilation_config", None)
    if compilation is None or not getattr(compilation, "mode", 0):
        return False
    import torch._inductor.config as inductor

    options = dict(getattr(compilation, "inductor_compile_config", None) or {})
    # On CPUs vLLM freezes where it is told to tune.
    tuned = options.get("max_autotune", False) and vllm_config.device_config.device_type == "cpu"
    return bool(options.get("freezing", inductor.freezing) or tuned)


def _is_made_otherwise(module: torch.nn.Module, before: torch.nn.Module) -> bool:
    return (
        bool(set(module._buffers) - set(before._buffers))
        or bool(set(module._parameters) - set(before._parameters))
        or type(getattr(module, "quant_method", None)) is not type(getattr(before, "quant_method", None))
    )


def _more_objects(module: torch.nn.Module, before: torch.nn.Module) -> list[Any]:
    """Values that are more than plain, where there was nothing: of the module, and of the object that computes it, for
    that may keep copies of its own."""
    method, method_before = getattr(module, "quant_method", None), getattr(before, "quant_method", None)
    return [*_more_attributes(module, before), *_more_attributes(method, method_before)]


def _more_attributes(value: Any, before: Any) -> list[Any]:
    attributes, attributes_before = getattr(value, "__dict__", {}), getattr(before, "__dict__", {})
    return [
        attribute
        for name, attribute in attributes.items()
        if attributes_before.get(name) is None
        and name not in _OF_TORCH
        and name not in _OF_THE_COMPILER
        and not _leads_only_to(set(), attribute, objects=False)
    ]


def _leads_only_to(storages: set[int], value: Any, *, objects: bool = True) -> bool:
    """Whether all tensors that can be reached from a value are in these storages, and all else can be looked into.
    Without `objects`, only functions and containers are looked into, and all they hold must be plain."""
    seen: set[int] = set()
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if id(value) in seen or isinstance(value, (*_PLAIN, *_OUTSIDE)):
            continue
        seen.add(id(value))
        if isinstance(value, torch.Tensor):
            if storage_of(value) not in storages:
                return False
            continue
        held = _held_by(value, objects)
        if held is None or len(seen) > _MOST_OBJECTS:
            return False
        waiting += held
    return True


def _held_by(value: Any, objects: bool) -> list[Any] | None:
    """What a value holds; None if that cannot be seen."""
    if isinstance(value, types.FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or () if cell != types.CellType()]
        return [*cells, *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    if isinstance(value, types.BuiltinFunctionType):
        return [value.__self__]
    if isinstance(value, (tuple, list, set, frozenset)):
        return list(value)
    if isinstance(value, dict):
        return list(value.values())
    if not objects:
        return None
    if isinstance(value, types.MethodType):
        return [value.__self__, value.__func__]
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if type(value).__module__.startswith("vllm.config"):
        return []  # it leads everywhere, and what it says is no weight
    # Who must clean up may own what only C++ can see.
    if hasattr(value, "__del__") or not hasattr(value, "__dict__"):
        return None
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    return [*vars(value).values(), *(getattr(value, name) for name in slots if hasattr(value, name))]
