"""Which modules keep something made from their weights.

After loading, a module may keep what its kernels want: packed weights, products of two weights. Writing to its
parameters would leave that as it was. Such a module has something that the same module has not before: an attribute
that is more than a plain value, or a function that carries something with it.
"""

from __future__ import annotations

import enum
import types
from typing import Any

import torch

_PLAIN = (type(None), bool, int, float, str, bytes, torch.dtype, torch.device, torch.Size, enum.Enum, type)


def modules_with_derived_state(live: torch.nn.Module, shadow: torch.nn.Module) -> set[str]:
    """Names of modules that keep something made from weights, their own or those of modules within them: with what
    keeps it, all within are named."""
    before = dict(shadow.named_modules(remove_duplicate=False))
    found = [
        name
        for name, module in live.named_modules(remove_duplicate=False)
        if name not in before or _has_more(module, before[name])
    ]
    return {
        name
        for name, _ in live.named_modules(remove_duplicate=False)
        for holder in found
        if name == holder or holder == "" or name.startswith(holder + ".")
    }


def _has_more(module: torch.nn.Module, before: torch.nn.Module) -> bool:
    return (
        _attributes_differ(module, before)
        or bool(set(module._buffers) - set(before._buffers))
        or bool(set(module._parameters) - set(before._parameters))
        or _method_has_more(module, before)
    )


def _method_has_more(module: torch.nn.Module, before: torch.nn.Module) -> bool:
    """The object that computes a layer may keep its own copies."""
    method, method_before = getattr(module, "quant_method", None), getattr(before, "quant_method", None)
    if type(method) is not type(method_before):
        return True
    return method is not None and _attributes_differ(method, method_before)


def _attributes_differ(value: Any, before: Any) -> bool:
    attributes, attributes_before = getattr(value, "__dict__", {}), getattr(before, "__dict__", {})
    return any(
        attributes_before.get(name) is None and not _is_plain(attribute)
        for name, attribute in attributes.items()
        if name not in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
    )


def _is_plain(value: Any) -> bool:
    """Whether it can hold no weights."""
    if isinstance(value, types.FunctionType):
        carried = [cell.cell_contents for cell in value.__closure__ or ()] + list(value.__defaults__ or ())
        return all(_is_plain(item) for item in carried)
    if isinstance(value, (types.BuiltinFunctionType, types.ModuleType)):
        return True
    if isinstance(value, (tuple, list, set, frozenset)):
        return all(_is_plain(item) for item in value)
    if isinstance(value, dict):
        return all(_is_plain(item) for item in value.values())
    return isinstance(value, _PLAIN)
