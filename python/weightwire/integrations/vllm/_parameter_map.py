"""Maps a checkpoint's elements to a worker's parameters, compares the two, and updates the parameters.

An update has two halves. *Preparing* reads the change, finds where its elements are on this rank, and compares the
parameters with the values that the change starts from; it writes nothing, and steps may run at the same time.
*Committing* writes what was prepared, and reads it back; no step may run at the same time.

Not thread safe; preparing and committing may be on two threads, one after the other.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from weightwire.errors import CorruptError, UnsupportedError
from weightwire.integrations.vllm._derived import Derived, derived_state, has_frozen_weights
from weightwire.integrations.vllm._learned_map import (
    BoxMapping,
    LearnedMap,
    learn,
    shadow_model,
    storage_of,
    tensors_of,
)
from weightwire.integrations.vllm._mirror import ChangedElements, HeldVersion, map_tensors, read_change, read_held
from weightwire.integrations.vllm._prepared_update import (
    DenseWrite,
    PreparedUpdate,
    SparseWrite,
    as_words,
    bits_differ,
    reload_modules,
)

logger = logging.getLogger("vllm.weightwire")

# The number of elements that are compared at a time.
_STRIDE = 1 << 24
# A box is written as a whole if at least one in this number of its elements differs.
_WHOLE_ABOVE = 16


class UpdateRefused(UnsupportedError):
    """The update cannot be done exactly. Nothing was written."""


class WeightsDiffer(CorruptError):
    """The parameters do not hold the values of their version, so the engine must stop answering."""


class ParameterMap:
    def __init__(self, model: torch.nn.Module, vllm_config: Any, mirror: Path) -> None:
        """Learns the map, and compares all readable parameters with the mirror, which is slow for large models. If the
        map cannot be learned, every update is refused."""
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
        self._boxes: dict[str, list[BoxMapping]] = {}
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
        for box in learned.boxes:
            self._boxes.setdefault(box.tensor, []).append(box)
        self._has_opaque = bool(learned.opaque)
        self._elsewhere = learned.elsewhere
        self._mapped = {box.parameter for box in learned.boxes}
        self._readable: set[str] = set()
        self._plain: set[str] = set()
        self._refused: dict[str, str] = {}
        if shadow is not None:
            self._readable, self._plain, self._refused = self._sort_parameters(shadow, learned, live, derived.state)
        self._may_be_plain = frozenset(self._plain)
        differing = self._which_differ(self._readable, checkpoint)
        self._refuse_unknown_orders(differing, derived)
        self._plain -= differing | self._refused.keys()
        # For example experts that were packed in place, which can be neither compared nor loaded again.
        self._readable -= differing & self._refused.keys()
        self.stale = differing - self._refused.keys()
        """Parameters whose values differ from the mirror's: either other weights were loaded, or their elements are in
        another order. Reloading them and comparing again tells which."""

    def _sort_parameters(
        self, shadow: torch.nn.Module, learned: LearnedMap, live: dict[str, torch.Tensor], derived: set[str]
    ) -> tuple[set[str], set[str], dict[str, str]]:
        """Returns the parameters that have the checkpoint's elements at the learned positions, as far as can be seen
        without comparing; those of them that may be written to; and those that cannot even be loaded again, and why."""
        owners: dict[int, set[str]] = {}
        for name, tensor in tensors_of(shadow):
            owners.setdefault(storage_of(tensor), set()).add(_module_of(name))
        readable, plain, refused = set(), set(), {}
        for name, tensor in tensors_of(shadow):
            sharing = owners[storage_of(tensor)]
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
                    f"{_module_of(name)} keeps something made from its weights, and loading it again has not been "
                    "shown to be exact"
                )
            elif len(sharing) > 1:
                refused[name] = (
                    f"{' and '.join(sorted(sharing))} share a weight, and keep something made from it that cannot be "
                    "brought up to date for both"
                )
        return readable, plain, refused

    def _refuse_unknown_orders(self, differing: set[str], derived: Derived) -> None:
        """Refuses parameters whose order of elements cannot be determined. Usually a comparison shows the order, and a
        reload tells a different order from different weights."""
        for name in self._may_be_plain:
            module = _module_of(name)
            method = getattr(self._model.get_submodule(module), "quant_method", None)
            if name in differing and method is not None and not _can_be_reloaded(self._model, module, derived.state):
                self._refused[name] = (
                    f"{module} holds its weights in another order than the checkpoint, or other weights, and loading "
                    "it again has not been shown to be exact"
                )
            elif name in self._mapped and module in derived.kernels and _is_constant(self._flat[name]):
                self._refused[name] = f"the elements of '{name}' are all the same, so their order cannot be told"

    @property
    def summary(self) -> dict[str, Any]:
        """How each parameter can be updated and compared, for the API server and its status."""
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
            # These are right only if they were loaded from the mirror's present files.
            "unread": sorted(self._mapped - self._readable - self._refused.keys()),
            "unproven": sorted((self._mapped & self._refused.keys()) - self._readable) + sorted(self._elsewhere),
        }

    # --- preparing ---

    def check_can_change(self, tensors: Iterable[str]) -> None:
        """Raises `UpdateRefused` if changes to any of these tensors of the checkpoint would be refused."""
        touched: set[str] = set()
        for tensor in tensors:
            self._refuse_unknown(tensor)
            touched.update(box.parameter for box in self._boxes.get(tensor, ()))
        self._add_reload(PreparedUpdate(0), touched - self._plain)

    def _refuse_unknown(self, tensor: str) -> None:
        if self._refuses_all is not None:
            raise UpdateRefused(self._refuses_all)
        if tensor not in self._layout:
            raise UpdateRefused(f"the checkpoint has a new tensor '{tensor}'; restart the server")
        if tensor in self._elsewhere:
            raise UpdateRefused(f"'{tensor}' goes where it cannot be followed")
        if tensor not in self._boxes and self._has_opaque:
            raise UpdateRefused(f"where '{tensor}' goes is not known")

    def prepare_change(self, path: Path, version: int) -> PreparedUpdate:
        """Prepares the staged change in a file."""
        prepared = PreparedUpdate(version)
        found: dict[str, list[tuple[np.ndarray, torch.Tensor, torch.Tensor]]] = {}
        touched: set[str] = set()
        for tensor, changed in read_change(path).items():
            self._refuse_unknown(tensor)
            for box in self._boxes.get(tensor, []):
                chosen, positions = box.locate(changed.positions)
                if len(chosen) == 0:
                    continue
                if box.parameter not in self._plain:
                    touched.add(box.parameter)
                    continue
                new, old = self._values(box, changed, chosen)
                found.setdefault(box.parameter, []).append((positions, new, old))
        for parameter, pieces in found.items():
            words = self._words(parameter)
            positions = torch.from_numpy(np.concatenate([piece[0] for piece in pieces])).to(words.device)
            new = torch.cat([piece[1] for piece in pieces]).to(words.device)
            old = torch.cat([piece[2] for piece in pieces]).to(words.device)
            if not torch.equal(words.index_select(0, positions), old):
                raise WeightsDiffer(f"'{parameter}' does not hold what the change starts from")
            prepared.writes.append(SparseWrite(words, positions, new))
            prepared.elements += len(positions)
        self._add_reload(prepared, touched)
        return prepared

    def prepare_mirror(self, held: HeldVersion) -> PreparedUpdate:
        """Prepares all differences between the parameters and the mirror, which must hold `held`. Parameters that
        cannot be compared are loaded again."""
        if self._refuses_all is not None:
            raise UpdateRefused(f"{self._refuses_all}; restart the server")
        self.check_mirror_holds(held)
        checkpoint = map_tensors(self._mirror)
        if {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in checkpoint.items()} != self._layout:
            raise UpdateRefused("the checkpoint has other names, types or shapes now; restart the server")
        if self._elsewhere:
            raise UpdateRefused(f"'{min(self._elsewhere)}' goes where it cannot be followed; restart the server")
        prepared = PreparedUpdate(held.version)
        for name, boxes in self._boxes.items():
            for box in boxes:
                if box.parameter in self._plain:
                    for part in box.split(_STRIDE):
                        self._add_difference(prepared, part, checkpoint[name])
        # A parameter that does not differ needs no reload, because nothing derived from it differs either.
        not_plain = self._mapped - self._plain
        differing = self._which_differ(not_plain & self._readable, checkpoint)
        try:
            self._add_reload(prepared, (not_plain - self._readable) | differing)
        except UpdateRefused as error:
            raise UpdateRefused(f"{error}; restart the server") from None
        return prepared

    def check_mirror_holds(self, held: HeldVersion) -> None:
        if not held.is_same(read_held(self._mirror)):
            raise UpdateRefused(
                f"the mirror {self._mirror} does not hold version {held.version} (any more), as it should"
            )

    def _add_difference(self, prepared: PreparedUpdate, box: BoxMapping, tensor: torch.Tensor) -> None:
        flat = self._flat[box.parameter]
        source = box.source(tensor.view(-1)).to(flat.dtype)
        target = box.target(flat)
        differing = bits_differ(target, source)
        count = int(differing.sum())
        if count == 0:
            return
        prepared.elements += count
        if count * _WHOLE_ABOVE >= differing.numel():
            prepared.writes.append(DenseWrite(target, source))
            return
        coordinates = differing.nonzero()
        strides = torch.tensor(box.target_strides, device=coordinates.device)
        positions = (coordinates * strides).sum(1) + box.target_offset
        words = self._words(box.parameter)
        new = as_words(source.to(flat.device)[differing])
        prepared.writes.append(SparseWrite(words, positions, new))

    def _add_reload(self, prepared: PreparedUpdate, parameters: set[str]) -> None:
        """Adds all tensors of the modules of these parameters, and of further modules that these tensors go to, because
        a reload writes a tensor everywhere, and needs all tensors of a module."""
        modules = {_module_of(name) for name in parameters}
        while True:
            tensors = [
                tensor
                for tensor, boxes in self._boxes.items()
                if any(_module_of(box.parameter) in modules for box in boxes)
            ]
            touched = {box.parameter for tensor in tensors for box in self._boxes[tensor]}
            if {_module_of(name) for name in touched} <= modules:
                break
            modules |= {_module_of(name) for name in touched}
        for name in sorted((touched | parameters) & self._refused.keys()):
            raise UpdateRefused(self._refused[name])
        prepared.reload += tensors

    def _values(
        self, box: BoxMapping, changed: ChangedElements, chosen: np.ndarray
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """New and old words of a parameter, converted to its type as the loader does."""
        dtype, target = self._layout[box.tensor][0], self._flat[box.parameter].dtype

        def convert(bits: np.ndarray) -> torch.Tensor:
            # Fancy indexing copies, so the tensor has writable memory of its own.
            values = torch.from_numpy(bits[chosen].view(np.uint8)).view(dtype)
            return as_words(values.to(target))

        return convert(changed.new_bits), convert(changed.old_bits)

    def _words(self, parameter: str) -> torch.Tensor:
        return as_words(self._flat[parameter])

    # --- committing ---

    def commit(self, prepared: PreparedUpdate) -> bool:
        """Writes what was prepared, and reads it back. Returns whether that was the same. REQUIRES: the mirror holds
        the version, if something is reloaded."""
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

    def recheck_stale(self) -> None:
        """After a reload of all stale parameters: those that now have the mirror's bits can be compared from now on,
        and written to if nothing is derived from them. The elements of the others are in an unknown order."""
        checkpoint = map_tensors(self._mirror)
        wrong = self._which_differ(self.stale, checkpoint)
        for name in sorted(wrong & self._may_be_plain):
            if getattr(self._model.get_submodule(_module_of(name)), "quant_method", None) is None:
                raise UpdateRefused(f"'{name}' is kept in another order than the checkpoint's")
        self._readable -= wrong
        self._plain |= (self.stale & self._may_be_plain) - wrong
        self.stale = set()

    def compare(self) -> tuple[int, str | None]:
        """Compares all readable parameters with the mirror. Returns the number of elements, and the name of a parameter
        that differs, if any."""
        checkpoint = map_tensors(self._mirror)
        elements = 0
        for name, boxes in self._boxes.items():
            for box in boxes:
                if box.parameter in self._readable and box.parameter not in self.stale:
                    if self._box_differs(box, checkpoint[name]):
                        return elements, box.parameter
                    elements += int(np.prod(box.sizes))
        return elements, None

    def _which_differ(self, parameters: set[str], checkpoint: dict[str, torch.Tensor]) -> set[str]:
        return {
            box.parameter
            for boxes in self._boxes.values()
            for box in boxes
            if box.parameter in parameters and self._box_differs(box, checkpoint[box.tensor])
        }

    def _box_differs(self, box: BoxMapping, tensor: torch.Tensor) -> bool:
        flat = self._flat[box.parameter]
        return any(
            bool(bits_differ(part.target(flat), part.source(tensor.view(-1)).to(flat.dtype)).any())
            for part in box.split(_STRIDE)
        )


def _can_be_reloaded(model: torch.nn.Module, name: str, derived: set[str]) -> bool:
    """Whether vLLM's reload has been shown to be exact for this kind of module: dense layers that are not quantized,
    with nothing derived from them elsewhere. Experts on CPUs, for example, keep what was packed first."""
    above = name.rpartition(".")[0]
    method = type(getattr(model.get_submodule(name), "quant_method", None)).__name__
    return method in ("UnquantizedLinearMethod", "UnquantizedEmbeddingMethod") and above not in derived


def _is_constant(flat: torch.Tensor) -> bool:
    return bool((flat == flat[0]).all())


def _module_of(parameter: str) -> str:
    return parameter.rpartition(".")[0]
