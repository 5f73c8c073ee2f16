"""What a tensor is published as: as it is, as shorter floats, or as fp8 with scales. Conversions happen while the core
compares, a few thousand elements at a time."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from weightwire import _core, _pieces
from weightwire._arrays import as_numpy, bits_of, dtype_name, is_dense, is_torch_tensor, named_dtype, numpy_dtype
from weightwire.errors import InvalidArgumentError

Item = tuple[str, str, tuple[int, ...], Any]
"""For the core: name, type, shape, and bytes or a reader of them."""

_FLOATS = ("F64", "F32", "F16", "BF16")


def check_published_type(dtype: Any) -> None:
    """What floating-point tensors are published as: an Fp8, a floating-point type, or None."""
    if dtype is None or isinstance(dtype, Fp8):
        return
    if "F" not in named_dtype(dtype):
        raise InvalidArgumentError(f"weights cannot be published as {dtype}: give a floating-point type")


@dataclass(frozen=True)
class Fp8:
    """Publishes linear layers as fp8, as the fp8 checkpoints on the Hub have them: `weight` as F8_E4M3, and beside it
    `weight_scale_inv`, with a scale for each block of 128 by 128. Give it to a publisher as `dtype`.

    A block's scale is its largest absolute value / 448; elements are divided by it and rounded as torch does. Tensors
    that are no linear layers' weights, the output layer, and those whose names match one of `keep` (regular
    expressions) are published as `rest`.

    >>> import tempfile
    >>> import numpy as np
    >>> import weightwire as ww
    >>> weights = {"up_proj.weight": np.ones((256, 128), np.float32), "norm.weight": np.ones(128, np.float32)}
    >>> with ww.Publisher(bucket := tempfile.mkdtemp(), weights, dtype=ww.Fp8()) as publisher:
    ...     ticket = publisher.publish()
    >>> {name: str(array.dtype) for name, array in ww.load(bucket).items()}
    {'norm.weight': 'bfloat16', 'up_proj.weight': 'float8_e4m3fn', 'up_proj.weight_scale_inv': 'float32'}
    """

    scales: Literal["float32", "power_of_two"] = "float32"
    """As they are, or each rounded up to a power of two (both are stored as F32)."""
    keep: Sequence[str] = ("lm_head", r"\.gate\.")
    rest: Any = "bfloat16"

    def __post_init__(self) -> None:
        if self.scales not in ("float32", "power_of_two"):
            raise InvalidArgumentError('the scales of Fp8 are "float32" or "power_of_two"')
        keep = (self.keep,) if isinstance(self.keep, str) else tuple(self.keep)
        object.__setattr__(self, "keep", keep)
        for pattern in keep:
            try:
                re.compile(pattern)
            except (re.error, TypeError) as error:
                raise InvalidArgumentError(f"{pattern!r} in keep= of Fp8 is no regular expression: {error}") from None
        check_published_type(self.rest)

    def keeps(self, name: str) -> bool:
        return any(re.search(pattern, name) for pattern in self.keep)

    def quantizes(self, name: str, linear: bool) -> bool:
        return linear and name.endswith(".weight") and not self.keeps(name)

    def configuration(self, kept: list[str]) -> dict[str, Any]:
        """`quantization_config` of config.json, with the modules that are not quantized."""
        described: dict[str, Any] = {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [_pieces.BLOCK, _pieces.BLOCK],
            "modules_to_not_convert": kept,
        }
        if self.scales == "power_of_two":
            described["scale_fmt"] = "ue8m0"
        return described


class Kept:
    """The last few tensors that were made, since each is read piece after piece."""

    def __init__(self, size: int = 2) -> None:
        self._lock = threading.Lock()
        self._size = size
        self._made: dict[int, tuple[Lazy, Any]] = {}

    def get(self, lazy: Lazy) -> Any:
        with self._lock:
            kept = self._made.pop(id(lazy), None) or (lazy, _pieces.readable(lazy.make()))
            self._made[id(lazy)] = kept
            while len(self._made) > self._size:
                self._made.pop(next(iter(self._made)))
            return kept[1]


@dataclass(frozen=True)
class Lazy:
    """A torch tensor that is made when it is read."""

    make: Callable[[], Any]
    dtype: Any
    shape: tuple[int, ...]
    device: Any
    kept: Kept


class _Memory(NamedTuple):
    """A tensor in host memory."""

    owner: Any
    address: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def _plain(name: str, value: Any) -> Any:
    """Such that its elements are what lies in its memory, a whole number of elements apart; a copy where they are
    not."""
    if is_torch_tensor(value):
        if not is_dense(value):
            raise InvalidArgumentError(
                f"'{name}' is a {value.layout} tensor, which no checkpoint can hold: make it dense"
            )
        value = value.detach()
        return value.resolve_conj().resolve_neg() if value.is_conj() or value.is_neg() else value
    if not hasattr(value, "__dlpack__"):
        value = as_numpy(name, value)
    if isinstance(value, np.ndarray) and any(stride % max(1, value.itemsize) for stride in value.strides):
        return np.ascontiguousarray(value)  # a field of a structured array, say
    return value


def _memory_of(name: str, value: Any) -> _Memory | None:
    """None if it is not in host memory, or has to be made into an array first."""
    if is_torch_tensor(value):
        if value.device.type != "cpu":
            return None
        return _Memory(value, value.data_ptr(), dtype_name(name, value), tuple(value.shape), tuple(value.stride()))
    if isinstance(value, np.ndarray):
        strides = tuple(stride // max(1, value.itemsize) for stride in value.strides)
        return _Memory(value, value.ctypes.data, dtype_name(name, value), value.shape, strides)
    if not hasattr(value, "__dlpack__"):
        return None
    found = _core.dlpack(value)
    if found is None:
        raise InvalidArgumentError(f"'{name}' is on a device that only torch can read: give it as a torch tensor")
    if not found[2]:
        raise InvalidArgumentError(f"'{name}' has a type that no checkpoint can hold")
    return _Memory(*found)


def _in_order(memory: _Memory) -> bool:
    expected = 1
    for size, stride in zip(reversed(memory.shape), reversed(memory.strides), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _torch_dtype(name: str) -> Any:
    import torch

    from weightwire._arrays import torch_dtype

    return torch_dtype(name, torch)


def item_of(name: str, value: Any, to: str | None, *, goes_on: bool = False) -> Item:
    """One tensor as it is published. `to`: the type that floating-point ones get; None leaves them. `goes_on`: its
    owner does, so the core must not look at it twice."""
    if isinstance(value, Lazy):
        dtype = to or dtype_name(name, value)
        ready = _pieces.Ready(value.device)

        def read(firsts: list[int], count: int, out: np.ndarray) -> None:
            with ready.reading():
                made = value.kept.get(value)
            _pieces.TorchPieces(made, _torch_dtype(dtype), ready=ready)(firsts, count, out)

        return name, dtype, value.shape, _core.calling_reader(read, dtype)
    value = _plain(name, value)
    memory = _memory_of(name, value)
    dtype = memory.dtype if memory is not None else dtype_name(name, value)
    shape = memory.shape if memory is not None else tuple(value.shape)
    wanted = to if to is not None and dtype in _FLOATS else dtype
    borrowed = memory is not None and isinstance(memory.owner, _core.Borrowed)
    if memory is not None and wanted == dtype and _in_order(memory) and not borrowed and not goes_on:
        return (name, *bits_of(name, value))
    if memory is not None and (wanted == dtype or (dtype, wanted) == ("F32", "BF16")):
        return name, wanted, shape, _core.converting_reader(*memory, wanted, None)
    if isinstance(value, np.ndarray) and wanted in _FLOATS:
        return name, wanted, shape, _core.calling_reader(_pieces.NumpyPieces(value, numpy_dtype(wanted)), wanted)
    if not is_torch_tensor(value):
        raise InvalidArgumentError(f"'{name}' cannot be published as {wanted} from {dtype}: convert it, or use torch")
    if value.device.type == "meta":
        raise InvalidArgumentError(f"'{name}' is on the meta device: it has no data")
    return name, wanted, shape, _core.calling_reader(_pieces.TorchPieces(value, _torch_dtype(wanted)), wanted)


def fp8_items(name: str, value: Any, fp8: Fp8) -> list[Item]:
    """A matrix as F8_E4M3, and its scales."""
    if isinstance(value, Lazy):
        raise InvalidArgumentError(f"'{name}' cannot be published as fp8: merge the adapters first")
    power_of_two = fp8.scales == "power_of_two"
    value = _plain(name, value)
    memory = _memory_of(name, value)
    dtype = memory.dtype if memory is not None else dtype_name(name, value)
    shape = tuple(value.shape)
    reader: _core.Reader
    if memory is not None and dtype in ("F32", "BF16"):
        scales = _core.block_scales(*memory[1:], power_of_two)
        reader = _core.converting_reader(*memory, "F8_E4M3", scales)
        scale_item = item_of(f"{name}_scale_inv", scales, None)
    else:
        if not is_torch_tensor(value) or dtype not in _FLOATS:
            raise InvalidArgumentError(f"'{name}' cannot be published as fp8 from {dtype}")
        made = _pieces.block_scales(value, power_of_two=power_of_two)
        reader = _core.calling_reader(_pieces.TorchPieces(value, _torch_dtype("F8_E4M3"), made), "F8_E4M3")
        scale_item = item_of(f"{name}_scale_inv", made, None)
    return [(name, "F8_E4M3", shape, reader), scale_item]
