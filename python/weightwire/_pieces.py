"""Tensors that the core cannot read where they lie: on a device, or of a type that torch has to convert. A few million
elements at a time, through pinned memory, so that there is never a second copy of the model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np


class _Lane:
    """What one thread reads a device with: a stream of its own, and pinned memory. The core's threads are new to Python
    at every call, so nothing can be kept by thread: whoever reads takes one that nobody has."""

    _idle: ClassVar[dict[Any, list[_Lane]]] = {}  # by device

    def __init__(self, device: Any) -> None:
        import torch

        self.stream = torch.cuda.Stream(device)
        self._buffer: Any = None

    @classmethod
    @contextlib.contextmanager
    def of(cls, device: Any) -> Iterator[_Lane]:
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


def readable(tensor: Any) -> Any:
    """The tensor, once it can be read on any stream."""
    if tensor.device.type == "cuda":
        import torch

        torch.cuda.current_stream(tensor.device).synchronize()
    return tensor


class Ready:
    """What the caller has queued on its device up to now. Made by the thread that publishes. The threads that read wait
    for it, and for nothing that is queued later: training may go on meanwhile, so they have streams of their own."""

    def __init__(self, device: Any) -> None:
        self._event: Any = None
        if device.type == "cuda":
            import torch

            self._device = device
            self._event = torch.cuda.Event()
            self._event.record(torch.cuda.current_stream(device))

    @contextlib.contextmanager
    def reading(self) -> Iterator[_Lane | None]:
        """To read in; none for what is on the host."""
        if self._event is None:
            yield None
            return
        import torch

        with _Lane.of(self._device) as lane:
            lane.stream.wait_event(self._event)
            with torch.cuda.stream(lane.stream):
                yield lane


def _range(tensor: Any, first: int, end: int) -> list[Any]:
    """Elements of a tensor in any order, by their place in the order of its indices: a copy of them, not of all."""
    if tensor.dim() == 1:
        return [tensor[first:end]]
    row = tensor[0].numel()
    if first // row == (end - 1) // row:
        index = first // row
        return _range(tensor[index], first - index * row, end - index * row)
    begin, rest = -(-first // row), end % row
    pieces = []
    if first % row:
        pieces += _range(tensor[begin - 1], first % row, row)
    pieces.append(tensor[begin : end // row].reshape(-1))
    if rest:
        pieces += _range(tensor[end // row], 0, rest)
    return pieces


class TorchPieces:
    """Pieces of a tensor as `dtype`, for the core: called with the first elements of the pieces, the size of each, and
    where their bytes go."""

    def __init__(self, tensor: Any, dtype: Any, scales: Any = None, ready: Ready | None = None) -> None:
        tensor = tensor.detach()
        self._columns = tensor.shape[-1] if tensor.dim() else 1
        self._tensor = tensor.view(-1) if tensor.is_contiguous() else tensor
        self._dtype = dtype
        self._scales = scales
        self._ready = ready or Ready(tensor.device)

    def __call__(self, firsts: list[int], count: int, out: np.ndarray) -> None:
        with self._ready.reading() as lane:
            self._read(firsts, count, out, lane)

    def _read(self, firsts: list[int], count: int, out: np.ndarray, lane: _Lane | None) -> None:
        import torch

        device = self._tensor.device
        if len(firsts) == 1 and self._scales is None:
            pieces = _range(self._tensor, firsts[0], firsts[0] + count)
            elements = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
        else:
            starts = torch.tensor(firsts, dtype=torch.int64, device=device)
            places = (starts[:, None] + torch.arange(count, device=device)).reshape(-1)
            in_order = self._tensor.dim() == 1
            elements = self._tensor[places if in_order else torch.unravel_index(places, self._tensor.shape)]
            if self._scales is not None:
                rows, columns = places // self._columns, places % self._columns
                elements = elements.float() / self._scales[rows // BLOCK, columns // BLOCK]
                elements = elements.clamp(-LARGEST_E4M3, LARGEST_E4M3)
        converted = elements.to(self._dtype).contiguous()
        if converted.stride(0) != 1:  # of one element, which is in order whatever its stride
            converted = converted.clone(memory_format=torch.contiguous_format)
        converted = converted.view(torch.uint8)
        if lane is not None:
            pinned = lane.pinned(converted.numel())
            pinned.copy_(converted, non_blocking=True)
            lane.stream.synchronize()
            converted = pinned
        torch.from_numpy(out).copy_(converted)


class NumpyPieces:
    """The same for an array of numpy in any order, as numpy converts."""

    def __init__(self, array: np.ndarray, dtype: np.dtype) -> None:
        self._array = array
        self._dtype = dtype

    def __call__(self, firsts: list[int], count: int, out: np.ndarray) -> None:
        size = count * self._dtype.itemsize
        for number, first in enumerate(firsts):
            piece = self._array.flat[first : first + count]  # a copy of these elements alone
            with np.errstate(over="ignore"):  # infinity is what there is
                out[number * size : (number + 1) * size] = piece.astype(self._dtype).view(np.uint8)


BLOCK = 128
LARGEST_E4M3 = 448.0


def block_scales(tensor: Any, *, power_of_two: bool) -> Any:
    """What the core's block_scales gives, for a tensor that it cannot read."""
    import torch

    rows, columns = tensor.shape
    bands = []
    for start in range(0, rows, BLOCK):  # a band of blocks at a time
        band = tensor[start : start + BLOCK].detach().abs().float().amax(dim=0)
        missing = -columns % BLOCK
        bands.append(torch.nn.functional.pad(band, (0, missing)).reshape(-1, BLOCK).amax(dim=1))
    # On the host: a GPU divides by a constant as it multiplies by its inverse, which is not the same.
    largest = torch.stack(bands).cpu()
    scales = torch.where(largest == 0, torch.ones_like(largest), largest / LARGEST_E4M3)
    if power_of_two:
        mantissa, exponent = torch.frexp(scales)
        rounded = torch.ldexp(torch.ones_like(scales), torch.where(mantissa == 0.5, exponent - 1, exponent))
        scales = torch.where((largest == 0) | ~scales.isfinite(), scales, rounded)
    return scales.to(tensor.device)
