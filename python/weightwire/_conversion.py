"""How the core reads one tensor while it compares: directly from memory, converted by the core, or through Python.

Conversions happen in batches of a few thousand to a few million elements, so there is never a second copy of the model.
Tensors on a device come through pinned memory, on streams of their own.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from weightwire import _core
from weightwire._dtypes import FLOATS, as_numpy, dtype_name, is_dense, is_torch_tensor, numpy_dtype, torch_dtype
from weightwire.errors import InvalidArgumentError

CoreTensor = tuple[str, str, tuple[int, ...], Any]
"""A tensor for the core: name, type, shape, and bytes or a reader of them."""

BLOCK = 128
"""Rows and columns of a block that has one fp8 scale."""
LARGEST_E4M3 = 448.0


def core_tensor(name: str, value: Any, to: str | None, *, in_background: bool = False) -> CoreTensor:
    """One tensor as it is published. Floating-point tensors get the type `to`; None leaves them.

    With `in_background` the owner may compute while the core reads. The core must then read each element once, so it
    gets a reader in place of the bytes.
    """
    if isinstance(value, LazyTensor):
        dtype = to or dtype_name(name, value)
        return name, dtype, value.shape, _core.calling_reader(_lazy_reader(value, dtype), dtype)
    value = plain_array(name, value)
    memory = host_memory(name, value)
    dtype = memory.dtype if memory is not None else dtype_name(name, value)
    shape = memory.shape if memory is not None else tuple(value.shape)
    wanted = to if to is not None and dtype in FLOATS else dtype
    borrowed = memory is not None and isinstance(memory.owner, _core.Borrowed)
    if memory is not None and wanted == dtype and _in_order(memory) and not borrowed and not in_background:
        return name, dtype, shape, _flat_bytes(value)
    if memory is not None and (wanted == dtype or (dtype, wanted) == ("F32", "BF16")):
        return name, wanted, shape, _core.converting_reader(*memory, wanted, None)
    if isinstance(value, np.ndarray) and wanted in FLOATS:
        return name, wanted, shape, _core.calling_reader(NumpyBatchReader(value, numpy_dtype(wanted)), wanted)
    if not is_torch_tensor(value):
        raise InvalidArgumentError(f"'{name}' cannot be published as {wanted} from {dtype}: convert it, or use torch")
    if value.device.type == "meta":
        raise InvalidArgumentError(f"'{name}' is on the meta device: it has no data")
    return name, wanted, shape, _core.calling_reader(TorchBatchReader(value, torch_dtype(wanted)), wanted)


# --- tensors that are made when they are read ---


class LazyCache:
    """Keeps the last few tensors that were made, because the core reads each in many batches."""

    def __init__(self, size: int = 2) -> None:
        self._lock = threading.Lock()
        self._size = size
        self._made: dict[int, tuple[LazyTensor, Any]] = {}

    def get(self, lazy: LazyTensor) -> Any:
        with self._lock:
            made = self._made.pop(id(lazy), None) or (lazy, _synchronized(lazy.make()))
            self._made[id(lazy)] = made
            while len(self._made) > self._size:
                self._made.pop(next(iter(self._made)))
            return made[1]


@dataclass(frozen=True)
class LazyTensor:
    """A torch tensor that is made when it is read."""

    make: Callable[[], Any]
    dtype: Any
    shape: tuple[int, ...]
    device: Any
    cache: LazyCache


def _lazy_reader(lazy: LazyTensor, dtype: str) -> Callable[[list[int], int, np.ndarray], None]:
    fence = StreamFence(lazy.device)

    def read(firsts: list[int], count: int, out: np.ndarray) -> None:
        with fence.lane():
            made = lazy.cache.get(lazy)
        TorchBatchReader(made, torch_dtype(dtype), fence=fence)(firsts, count, out)

    return read


# --- tensors in host memory ---


class HostMemory(NamedTuple):
    """A tensor in host memory: the arguments of the core's readers."""

    owner: Any
    address: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def plain_array(name: str, value: Any) -> Any:
    """The value as an array whose elements are in memory at strides of whole elements. A copy if they are not."""
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
        return np.ascontiguousarray(value)  # for example a field of a structured array
    return value


def host_memory(name: str, value: Any) -> HostMemory | None:
    """Returns the memory of a plain array; None for a torch tensor on a device."""
    if is_torch_tensor(value):
        if value.device.type != "cpu":
            return None
        return HostMemory(value, value.data_ptr(), dtype_name(name, value), tuple(value.shape), tuple(value.stride()))
    if isinstance(value, np.ndarray):
        strides = tuple(stride // max(1, value.itemsize) for stride in value.strides)
        return HostMemory(value, value.ctypes.data, dtype_name(name, value), value.shape, strides)
    if not hasattr(value, "__dlpack__"):
        return None
    found = _core.dlpack(value)
    if found is None:
        raise InvalidArgumentError(f"'{name}' is on a device that only torch can read: give it as a torch tensor")
    if not found[2]:
        raise InvalidArgumentError(f"'{name}' has a type that no checkpoint can hold")
    return HostMemory(*found)


def _in_order(memory: HostMemory) -> bool:
    expected = 1
    for size, stride in zip(reversed(memory.shape), reversed(memory.strides), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _flat_bytes(value: Any) -> Any:
    """A view as flat uint8. REQUIRES: the elements are in order, so nothing is copied."""
    if isinstance(value, np.ndarray):
        return np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    import torch

    return value.contiguous().view(-1).view(torch.uint8)


class NumpyBatchReader:
    """Reads batches of a numpy array in any order, converted to `dtype` by numpy."""

    def __init__(self, array: np.ndarray, dtype: np.dtype) -> None:
        self._array = array
        self._dtype = dtype

    def __call__(self, firsts: list[int], count: int, out: np.ndarray) -> None:
        size = count * self._dtype.itemsize
        for number, first in enumerate(firsts):
            batch = self._array.flat[first : first + count]  # copies these elements only
            with np.errstate(over="ignore"):  # too large numbers become infinity
                out[number * size : (number + 1) * size] = batch.astype(self._dtype).view(np.uint8)


# --- torch tensors, and devices ---


class _DeviceLane:
    """A stream and a pinned buffer, for one thread that reads from a device. Lanes come from a pool and not from
    thread-local storage, because the core calls Python from new threads each time."""

    _idle: ClassVar[dict[Any, list[_DeviceLane]]] = {}  # by device

    def __init__(self, device: Any) -> None:
        import torch

        self.stream = torch.cuda.Stream(device)
        self._buffer: Any = None

    @classmethod
    @contextlib.contextmanager
    def of(cls, device: Any) -> Iterator[_DeviceLane]:
        idle = cls._idle.setdefault(device, [])
        try:
            lane = idle.pop()
        except IndexError:
            lane = cls(device)
        try:
            yield lane
        finally:
            idle.append(lane)

    def pinned(self, size: int) -> Any:
        if self._buffer is None or self._buffer.numel() < size:
            import torch

            self._buffer = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        return self._buffer[:size]


def _synchronized(tensor: Any) -> Any:
    """Waits until a tensor that was made on the current stream can be read on any stream."""
    if tensor.device.type == "cuda":
        import torch

        torch.cuda.current_stream(tensor.device).synchronize()
    return tensor


class StreamFence:
    """The work that the publishing thread has queued on its device so far. Threads that read wait for it, but not for
    work that is queued later, because training may continue while they read."""

    def __init__(self, device: Any) -> None:
        self._event: Any = None
        if device.type == "cuda":
            import torch

            self._device = device
            self._event = torch.cuda.Event()
            self._event.record(torch.cuda.current_stream(device))

    @contextlib.contextmanager
    def lane(self) -> Iterator[_DeviceLane | None]:
        """A lane to read with, after the fence; None for tensors on the host."""
        if self._event is None:
            yield None
            return
        import torch

        with _DeviceLane.of(self._device) as lane:
            lane.stream.wait_event(self._event)
            with torch.cuda.stream(lane.stream):
                yield lane


def _elements(tensor: Any, first: int, end: int) -> list[Any]:
    """The elements from `first` to `end` in index order, whatever the order in memory, as copies of these alone."""
    if tensor.dim() == 1:
        return [tensor[first:end]]
    row = tensor[0].numel()
    if first // row == (end - 1) // row:
        index = first // row
        return _elements(tensor[index], first - index * row, end - index * row)
    begin, rest = -(-first // row), end % row
    found = []
    if first % row:
        found += _elements(tensor[begin - 1], first % row, row)
    found.append(tensor[begin : end // row].reshape(-1))
    if rest:
        found += _elements(tensor[end // row], 0, rest)
    return found


class TorchBatchReader:
    """Reads batches of a torch tensor, converted to `dtype` by torch. The core calls it with the first element of each
    batch, the number of elements in a batch, and the array to fill."""

    def __init__(self, tensor: Any, dtype: Any, scales: Any = None, fence: StreamFence | None = None) -> None:
        tensor = tensor.detach()
        self._columns = tensor.shape[-1] if tensor.dim() else 1
        self._tensor = tensor.view(-1) if tensor.is_contiguous() else tensor
        self._dtype = dtype
        self._scales = scales
        self._fence = fence or StreamFence(tensor.device)

    def __call__(self, firsts: list[int], count: int, out: np.ndarray) -> None:
        with self._fence.lane() as lane:
            self._read(firsts, count, out, lane)

    def _read(self, firsts: list[int], count: int, out: np.ndarray, lane: _DeviceLane | None) -> None:
        import torch

        device = self._tensor.device
        if len(firsts) == 1 and self._scales is None:
            found = _elements(self._tensor, firsts[0], firsts[0] + count)
            elements = found[0] if len(found) == 1 else torch.cat(found)
        else:
            starts = torch.tensor(firsts, dtype=torch.int64, device=device)
            positions = (starts[:, None] + torch.arange(count, device=device)).reshape(-1)
            in_order = self._tensor.dim() == 1
            elements = self._tensor[positions if in_order else torch.unravel_index(positions, self._tensor.shape)]
            if self._scales is not None:
                rows, columns = positions // self._columns, positions % self._columns
                elements = elements.float() / self._scales[rows // BLOCK, columns // BLOCK]
                elements = elements.clamp(-LARGEST_E4M3, LARGEST_E4M3)
        converted = elements.to(self._dtype).contiguous()
        if converted.stride(0) != 1:  # one element is contiguous with any stride
            converted = converted.clone(memory_format=torch.contiguous_format)
        converted = converted.view(torch.uint8)
        if lane is not None:
            pinned = lane.pinned(converted.numel())
            pinned.copy_(converted, non_blocking=True)
            lane.stream.synchronize()
            converted = pinned
        torch.from_numpy(out).copy_(converted)
