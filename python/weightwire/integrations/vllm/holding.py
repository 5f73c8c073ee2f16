"""A worker's parameters as they hold a version: what is where, whether it is right, and what a change does to them.

A change is made in two halves. *Preparing* reads it, finds where its elements are on this rank, and compares what is
there with what it starts from; nothing is written, and steps may run meanwhile. *Committing* writes what was prepared,
and reads it back; no step may run meanwhile.

Not thread safe; preparing and committing may be on two threads, one after the other.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from weightwire.integrations.vllm.change_file import Changed, read_change
from weightwire.integrations.vllm.derived import Derived, derived_state, has_frozen_weights
from weightwire.integrations.vllm.mirror import MirrorHeld, map_tensors, read_held
from weightwire.integrations.vllm.places import Place
from weightwire.integrations.vllm.reload import reload_modules
from weightwire.integrations.vllm.shadow import LearnedMap, learn, shadow_model, tensors_of

logger = logging.getLogger("vllm.weightwire")

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# So many elements are compared at a time.
_STRIDE = 1 << 24
# A box of which at least one in so many elements differs is written as a whole.
_WHOLE_ABOVE = 16


class Refused(Exception):
    """What is asked for cannot be done exactly. Nothing was written."""


class Differs(Refused):
    """The parameters do not hold what the change starts from. Nothing was written."""


@dataclass
class Sparse:
    """Elements of one parameter, which is seen as flat words."""

    words: torch.Tensor
    positions: torch.Tensor
    new: torch.Tensor

    def write(self) -> None:
        self.words.index_copy_(0, self.positions, self.new)

    def differs(self) -> torch.Tensor:
        return (self.words.index_select(0, self.positions) != self.new).any()


@dataclass
class Dense:
    """A whole box of one parameter, and the same of the checkpoint."""

    target: torch.Tensor
    source: torch.Tensor

    def write(self) -> None:
        self.target.copy_(self.source)

    def differs(self) -> torch.Tensor:
        return _differing(self.target, self.source).any()


@dataclass
class Prepared:
    """What a commit does."""

    version: int
    writes: list[Sparse | Dense] = field(default_factory=list)
    reload: list[str] = field(default_factory=list)
    """Names of tensors to load anew, all of each module that is touched."""
    elements: int = 0


class Holding:
    def __init__(self, model: torch.nn.Module, vllm_config: Any, mirror: Path) -> None:
        """Learns the map. Slow for large models: everything that can be read is compared with the mirror. If it cannot
        be learned, every update is refused."""
        self._model = model
        self._vllm_config = vllm_config
        self._mirror = mirror
        checkpoint = map_tensors(mirror)
        self._layout = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in checkpoint.items()}
        live = dict(tensors_of(model))
        self._flat = {
            name: tensor.data.view(-1)
            for name, tensor in live.items()
            if tensor.is_contiguous() and not tensor.is_meta and tensor.numel() > 0
        }
        self._refuses_all: str | None = None
        self._places: dict[str, list[Place]] = {}
        learned = LearnedMap()
        derived = Derived(set(), set())
        shadow: torch.nn.Module | None = None
        try:
            shadow = shadow_model(vllm_config)
            learned = learn(shadow, self._layout)
            derived = derived_state(model, shadow)
        except Exception as error:  # whatever a loader may do that meta tensors cannot
            logger.exception("weightwire: where the checkpoint's tensors go could not be learned")
            self._refuses_all = (
                f"where the checkpoint's tensors go could not be learned ({type(error).__name__}: {error})"
            )
            learned, shadow = LearnedMap(elsewhere=set(self._layout)), None
        if has_frozen_weights(vllm_config):
            self._refuses_all = "the compiler was told to freeze weights, which makes constants of them"
        for place in learned.places:
            self._places.setdefault(place.tensor, []).append(place)
        self._has_opaque = bool(learned.opaque)
        self._elsewhere = learned.elsewhere
        self._mapped = {place.parameter for place in learned.places}
        self._readable: set[str] = set()
        self._plain: set[str] = set()
        self._refused: dict[str, str] = {}
        if shadow is not None:
            self._readable, self._plain, self._refused = self._sort_parameters(shadow, learned, live, derived.state)
        self._may_be_plain = frozenset(self._plain)
        differing = self._which_differ(self._readable, checkpoint)
        self._refuse_unknown_orders(differing, derived)
        self._plain -= differing | self._refused.keys()
        # Experts that were packed in place, for one: they cannot be compared, nor loaded anew.
        self._readable -= differing & self._refused.keys()
        self.stale = differing - self._refused.keys()
        """Parameters that do not hold what the mirror does. Either other weights were loaded, or they are kept in
        another order: reloading them and comparing once more tells."""

    def _sort_parameters(
        self, shadow: torch.nn.Module, learned: LearnedMap, live: dict[str, torch.Tensor], derived: set[str]
    ) -> tuple[set[str], set[str], dict[str, str]]:
        """Which parameters have the checkpoint's elements at the places learned, as far as can be seen without
        comparing; which of them may be written to; and which may not even be loaded anew, and why."""
        owners: dict[int, set[str]] = {}
        for name, tensor in tensors_of(shadow):
            owners.setdefault(int(tensor.untyped_storage()._cdata), set()).add(_module_of(name))
        readable, plain, refused = set(), set(), {}
        for name, tensor in tensors_of(shadow):
            sharing = owners[int(tensor.untyped_storage()._cdata)]
            now = live.get(name)
            same = (
                now is not None
                and name in self._flat
                and now.shape == tensor.shape
                and now.dtype == tensor.dtype
                and name not in learned.opaque
            )
            if same:
                readable.add(name)
            if same and not sharing & derived:
                plain.add(name)
            elif name in learned.opaque:
                refused[name] = f"'{name}' is made from the checkpoint in a way that is not known"
            elif not _can_be_reloaded(self._model, _module_of(name), derived):
                refused[name] = (
                    f"{_module_of(name)} keeps something made from its weights, and loading it anew has not been shown "
                    "to be exact"
                )
            elif len(sharing) > 1:
                refused[name] = (
                    f"{' and '.join(sorted(sharing))} share a weight, and keep something made from it that cannot be "
                    "brought up to date for both"
                )
        return readable, plain, refused

    def _refuse_unknown_orders(self, differing: set[str], derived: Derived) -> None:
        """Comparing tells the order of a parameter's elements, and a reload whether it is an order or other weights
        that make a difference. Not always."""
        for name in self._may_be_plain:
            module = _module_of(name)
            method = getattr(self._model.get_submodule(module), "quant_method", None)
            if name in differing and method is not None and not _can_be_reloaded(self._model, module, derived.state):
                self._refused[name] = (
                    f"{module} holds its weights in another order than the checkpoint, or other weights, and loading "
                    "it anew has not been shown to be exact"
                )
            elif name in self._mapped and module in derived.kernels and _is_constant(self._flat[name]):
                self._refused[name] = f"the elements of '{name}' are all the same, so their order cannot be told"

    @property
    def summary(self) -> dict[str, Any]:
        """For people, and for whoever decides whether the engine holds what the mirror does."""
        can_update = self._refuses_all is None
        refused = set(self._refused.values())
        if self._refuses_all is not None:
            refused.add(self._refuses_all)
        else:
            refused.update(f"'{name}' goes where it cannot be followed" for name in self._elsewhere)
        return {
            "in_place": len(self._mapped & self._plain) if can_update else 0,
            "by_reload": len(self._mapped - self._plain - self._refused.keys()) if can_update else 0,
            "refused": sorted(refused),
            "stale": sorted(self.stale),
            # Only a load of what the mirror holds can have made these right.
            "unread": sorted(self._mapped - self._readable - self._refused.keys()),
            "unproven": sorted((self._mapped & self._refused.keys()) - self._readable) + sorted(self._elsewhere),
        }

    # --- preparing ---

    def may_change(self, tensors: Iterable[str]) -> None:
        """Refuses if changes to any of these tensors of the checkpoint would be."""
        touched: set[str] = set()
        for tensor in tensors:
            self._refuse_unknown(tensor)
            touched.update(place.parameter for place in self._places.get(tensor, ()))
        self._add_reload(Prepared(0), touched - self._plain)

    def _refuse_unknown(self, tensor: str) -> None:
        if self._refuses_all is not None:
            raise Refused(self._refuses_all)
        if tensor not in self._layout:
            raise Refused(f"the checkpoint has a new tensor '{tensor}'; start the server anew")
        if tensor in self._elsewhere:
            raise Refused(f"'{tensor}' goes where it cannot be followed")
        if tensor not in self._places and self._has_opaque:
            raise Refused(f"where '{tensor}' goes is not known")

    def prepare_change(self, path: Path, version: int) -> Prepared:
        """From a file with a staged change."""
        prepared = Prepared(version)
        found: dict[str, list[tuple[np.ndarray, torch.Tensor, torch.Tensor]]] = {}
        touched: set[str] = set()
        for tensor, changed in read_change(path).items():
            self._refuse_unknown(tensor)
            for place in self._places.get(tensor, []):
                chosen, positions = place.locate(changed.positions)
                if len(chosen) == 0:
                    continue
                if place.parameter not in self._plain:
                    touched.add(place.parameter)
                    continue
                new, old = self._values(place, changed, chosen)
                found.setdefault(place.parameter, []).append((positions, new, old))
        for parameter, pieces in found.items():
            words = self._words(parameter)
            positions = torch.from_numpy(np.concatenate([piece[0] for piece in pieces])).to(words.device)
            new = torch.cat([piece[1] for piece in pieces]).to(words.device)
            old = torch.cat([piece[2] for piece in pieces]).to(words.device)
            if not torch.equal(words.index_select(0, positions), old):
                raise Differs(f"'{parameter}' does not hold what the change starts from")
            prepared.writes.append(Sparse(words, positions, new))
            prepared.elements += len(positions)
        self._add_reload(prepared, touched)
        return prepared

    def prepare_mirror(self, held: MirrorHeld) -> Prepared:
        """Whatever brings the parameters to what the mirror holds, which must be that; those that cannot be compared
        are loaded anew."""
        if self._refuses_all is not None:
            raise Refused(f"{self._refuses_all}; start the server anew")
        self.check_mirror_holds(held)
        checkpoint = map_tensors(self._mirror)
        if {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in checkpoint.items()} != self._layout:
            raise Refused("the checkpoint has other names, types or shapes now; start the server anew")
        if self._elsewhere:
            raise Refused(f"'{min(self._elsewhere)}' goes where it cannot be followed; start the server anew")
        prepared = Prepared(held.version)
        for name, places in self._places.items():
            for place in places:
                if place.parameter in self._plain:
                    for part in _split(place):
                        self._add_difference(prepared, part, checkpoint[name])
        # What is made from a parameter is as it should be if the parameter is.
        not_plain = self._mapped - self._plain
        differing = self._which_differ(not_plain & self._readable, checkpoint)
        try:
            self._add_reload(prepared, (not_plain - self._readable) | differing)
        except Refused as error:
            raise Refused(f"{error}; start the server anew") from None
        return prepared

    def check_mirror_holds(self, held: MirrorHeld) -> None:
        now = read_held(self._mirror)
        if now != held:
            raise Refused(f"the mirror {self._mirror} does not hold version {held.version} (any more), as it should")

    def _add_difference(self, prepared: Prepared, place: Place, tensor: torch.Tensor) -> None:
        flat = self._flat[place.parameter]
        source = place.source(tensor.view(-1)).to(flat.dtype)
        target = place.target(flat)
        differing = _differing(target, source)
        count = int(differing.sum())
        if count == 0:
            return
        prepared.elements += count
        if count * _WHOLE_ABOVE >= differing.numel():
            prepared.writes.append(Dense(target, source))
            return
        coordinates = differing.nonzero()
        strides = torch.tensor(place.target_strides, device=coordinates.device)
        positions = (coordinates * strides).sum(1) + place.target_offset
        words = self._words(place.parameter)
        new = _as_words(source.to(flat.device)[differing])
        prepared.writes.append(Sparse(words, positions, new))

    def _add_reload(self, prepared: Prepared, parameters: set[str]) -> None:
        """All tensors of the modules of these parameters, and of those that they bring along: a tensor that is loaded
        anew goes everywhere where it belongs, and a module wants all of its own."""
        modules = {_module_of(name) for name in parameters}
        while True:
            tensors = [
                tensor
                for tensor, places in self._places.items()
                if any(_module_of(place.parameter) in modules for place in places)
            ]
            touched = {place.parameter for tensor in tensors for place in self._places[tensor]}
            if {_module_of(name) for name in touched} <= modules:
                break
            modules |= {_module_of(name) for name in touched}
        for name in sorted((touched | parameters) & self._refused.keys()):
            raise Refused(self._refused[name])
        prepared.reload += tensors

    def _values(self, place: Place, changed: Changed, chosen: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """New and old words of a parameter. The loader converts types, so do we."""
        dtype, target = self._layout[place.tensor][0], self._flat[place.parameter].dtype

        def convert(bits: np.ndarray) -> torch.Tensor:
            # Fancy indexing copies, so the tensor has writable memory of its own.
            values = torch.from_numpy(bits[chosen].view(np.uint8)).view(dtype)
            return _as_words(values.to(target))

        return convert(changed.new_bits), convert(changed.old_bits)

    def _words(self, parameter: str) -> torch.Tensor:
        return _as_words(self._flat[parameter])

    # --- committing ---

    def commit(self, prepared: Prepared) -> bool:
        """Writes what was prepared and reads it back: whether it is what it should be. REQUIRES: the mirror holds the
        version by now, if something is loaded anew."""
        with torch.inference_mode():
            for write in prepared.writes:
                write.write()
            if prepared.reload:
                checkpoint = map_tensors(self._mirror)
                with torch.device(self._device):
                    reload_modules(
                        self._model, self._vllm_config, ((name, checkpoint[name]) for name in prepared.reload)
                    )
            if not prepared.writes:
                return True
            return not bool(torch.stack([write.differs() for write in prepared.writes]).any())

    @property
    def _device(self) -> torch.device:
        return next(iter(self._flat.values())).device

    # --- checking ---

    def settle_stale(self) -> None:
        """After a reload of everything: what holds the mirror's bits now can be compared from here on, and written to
        if nothing is made from it. What does not is kept in another order, which is not known."""
        checkpoint = map_tensors(self._mirror)
        wrong = self._which_differ(self.stale, checkpoint)
        for name in sorted(wrong & self._may_be_plain):
            if getattr(self._model.get_submodule(_module_of(name)), "quant_method", None) is None:
                raise Refused(f"'{name}' is kept in another order than the checkpoint's")
        self._readable -= wrong
        self._plain |= (self.stale & self._may_be_plain) - wrong
        self.stale = set()

    def check(self) -> tuple[int, str | None]:
        """Compares everything that can be read with the mirror: how many elements, and a parameter that is not as it
        should be."""
        checkpoint = map_tensors(self._mirror)
        elements = 0
        for name, places in self._places.items():
            for place in places:
                if place.parameter in self._readable and place.parameter not in self.stale:
                    if self._place_differs(place, checkpoint[name]):
                        return elements, place.parameter
                    elements += int(np.prod(place.sizes))
        return elements, None

    def _which_differ(self, parameters: set[str], checkpoint: dict[str, torch.Tensor]) -> set[str]:
        return {
            place.parameter
            for places in self._places.values()
            for place in places
            if place.parameter in parameters and self._place_differs(place, checkpoint[place.tensor])
        }

    def _place_differs(self, place: Place, tensor: torch.Tensor) -> bool:
        flat = self._flat[place.parameter]
        return any(
            bool(_differing(part.target(flat), part.source(tensor.view(-1)).to(flat.dtype)).any())
            for part in _split(place)
        )


def _can_be_reloaded(model: torch.nn.Module, name: str, derived: set[str]) -> bool:
    """Whether vLLM's way to reload a module has been shown to be exact for this kind: dense layers that are not
    quantized, with nothing made from them elsewhere. Experts on CPUs, for one, keep what was packed first."""
    above = name.rpartition(".")[0]
    method = type(getattr(model.get_submodule(name), "quant_method", None)).__name__
    return method in ("UnquantizedLinearMethod", "UnquantizedEmbeddingMethod") and above not in derived


def _is_constant(flat: torch.Tensor) -> bool:
    return bool((flat == flat[0]).all())


def _module_of(parameter: str) -> str:
    return parameter.rpartition(".")[0]


def _as_words(values: torch.Tensor) -> torch.Tensor:
    return values.view(_WORDS[values.element_size()])


def _differing(target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    return _as_words(target) != _as_words(source.to(target.device))


def _split(place: Place) -> Iterable[Place]:
    """The place in parts of which each can be compared at once."""
    rows, inner = place.sizes[0], int(np.prod(place.sizes[1:], dtype=np.int64))
    step = max(1, _STRIDE // max(1, inner))
    if rows <= step:
        return [place]
    return _rows(place, rows, step)


def _rows(place: Place, rows: int, step: int) -> Iterator[Place]:
    for first in range(0, rows, step):
        yield replace(
            place,
            sizes=(min(step, rows - first), *place.sizes[1:]),
            source_offset=place.source_offset + first * place.source_strides[0],
            target_offset=place.target_offset + first * place.target_strides[0],
        )
