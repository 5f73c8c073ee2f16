"""Examines a model once. Later calls of publish only check that its tensors are the same memory, under the same names:
what takes microseconds for each tensor is done again only if something has changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from weightwire import _core
from weightwire._fp8 import Fp8
from weightwire._lora import Lora, is_peft
from weightwire._model_state import (
    ModelState,
    check_is_model,
    memory_key,
    plain_name,
    refuse_gathered,
    rules_of,
    state_of,
    unwrap,
)
from weightwire._write_check import WriteCheck


class _Examined(NamedTuple):
    """What was found out about a model. Refers neither to its tensors nor to their memory, because a trainer may free
    or move them between two calls."""

    prepared: _core.PreparedState
    names: list[str]
    """Of every tensor that the model has, second names included."""
    plain_names: list[str]
    walk: _core.ModuleWalk | None
    """Finds the tensors of a module without state_dict()."""
    rules: list[Any]
    in_background: bool


class ExaminedModels:
    """The models of one publisher. One thread at a time."""

    def __init__(self, dtype: Any, lora: Lora, known: Any) -> None:
        self._dtype = dtype
        self._lora = lora
        self._known = known
        self._examined: dict[bool, _Examined] = {}

    def state_of(self, model: Any, *, in_background: bool) -> ModelState:
        """The state of a model that is whole in this process."""
        check_is_model(model)
        examined = self._examined.get(in_background)
        state = None if examined is None else self._renewed(examined, model)
        return state or self._examine(model, in_background)

    def _renewed(self, examined: _Examined, model: Any) -> ModelState | None:
        """The state, if the model is as it was."""
        if examined.walk is not None:
            values = examined.walk.tensors(unwrap(model))
        else:
            tensors = _named_tensors(model)
            values = list(tensors.values()) if list(tensors) == examined.names else None
        if values is None or rules_of(model, self._known) != examined.rules:
            return None
        prepared = examined.prepared
        if not examined.in_background:
            return ModelState(prepared, None, {}) if prepared.renew(values) else None
        counts = prepared.renew_counted(values)
        return None if counts is None else ModelState(prepared, WriteCheck(examined.plain_names, counts), {})

    def _examine(self, model: Any, in_background: bool) -> ModelState:
        self._examined.pop(in_background, None)
        if is_peft(unwrap(model)):
            return state_of(model, self._dtype, self._lora, known=self._known, in_background=in_background)
        walk = _walk_of(model)
        if walk is None:
            tensors = dict(_named_tensors(model))  # once, because a mapping may make others each time
        else:
            tensors = dict(zip(walk.names(), walk.tensors(unwrap(model)) or (), strict=True))
        state = state_of(
            model, self._dtype, self._lora, known=self._known, in_background=in_background, tensors=tensors
        )
        # Scales are computed from the weights in every call.
        if not isinstance(self._dtype, Fp8):
            index = {plain_name(name): at for at, name in enumerate(tensors)}
            copied = {index[name]: made for name, made in state.copies.items()}
            if state.prepared.watch(list(tensors.values()), copied):
                rules = rules_of(model, self._known)
                self._examined[in_background] = _Examined(
                    state.prepared, list(tensors), list(index), walk, rules, in_background
                )
        return state


def _named_tensors(model: Any) -> Mapping[str, Any]:
    if isinstance(model, Mapping):
        return model
    module = unwrap(model)
    refuse_gathered(module)
    state: Mapping[str, Any] = module.state_dict()
    return state


def _walk_of(model: Any) -> _core.ModuleWalk | None:
    """None for a mapping, and for a module whose state_dict() gives anything but its parameters and buffers."""
    if isinstance(model, Mapping):
        return None
    module = unwrap(model)
    refuse_gathered(module)
    walk = _core.ModuleWalk.of(module)
    if walk is None:
        return None
    found, tensors = walk.tensors(module), module.state_dict()
    same = found is not None and walk.names() == list(tensors)
    same = same and list(map(memory_key, found or ())) == list(map(memory_key, tensors.values()))
    return walk if same else None
