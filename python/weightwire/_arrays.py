"""Arrays of any library as the core sees them: a type by its name in safetensors, a shape, and bytes. Nothing is copied
unless it must be."""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from weightwire.errors import InvalidArgumentError

_NUMPY_TYPES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "int16": "I16",
    "uint16": "U16",
    "int32": "I32",
    "uint32": "U32",
    "int64": "I64",
    "uint64": "U64",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
    "complex64": "C64",
    # By the package ml_dtypes.
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
}
# torch calls them the same.
_NUMPY_NAMES = {name: numpy_name for numpy_name, name in _NUMPY_TYPES.items()}


class Bits(NamedTuple):
    """One tensor for the core."""

    dtype: str
    shape: tuple[int, ...]
    data: Any  # a flat array of uint8, over the tensor's own memory where possible


def _torch() -> Any:
    """torch, if somebody has imported it; a torch tensor cannot be here otherwise."""
    return sys.modules.get("torch")


def is_torch_tensor(value: object) -> bool:
    torch = _torch()
    return torch is not None and isinstance(value, torch.Tensor)


def is_dense(tensor: Any) -> bool:
    """Whether a torch tensor's elements lie in its memory, so many apart: not those of a sparse one."""
    return bool(tensor.layout == _torch().strided)


def place_of(value: Any) -> tuple[Any, ...] | None:
    """Equal for arrays that are the same elements of the same memory; None if it is not known, or there are none."""
    if is_torch_tensor(value):
        if not is_dense(value) or value.numel() == 0 or value.device.type == "meta":
            return None
        seen_as = (value.dtype, value.is_conj(), value.is_neg())
        return (value.device, value.data_ptr(), seen_as, value.shape, value.stride())
    if isinstance(value, np.ndarray) and value.size > 0:
        return ("host", value.__array_interface__["data"][0], value.dtype, value.shape, value.strides)
    return None


@lru_cache(maxsize=256)
def _name_of(dtype: Any) -> str | None:
    return _NUMPY_TYPES.get(str(dtype).removeprefix("torch."))


def dtype_name(name: str, array: Any) -> str:
    """The type of a torch tensor or a numpy array, as safetensors calls it."""
    known = _name_of(array.dtype)
    if known is None:
        raise InvalidArgumentError(f"'{name}' has the type {array.dtype}, which no checkpoint can hold")
    return known


def named_dtype(dtype: Any) -> str:
    """A type as a person gives it (torch.bfloat16, numpy's, "bfloat16" or "BF16") as safetensors calls it."""
    if isinstance(dtype, type):  # np.float16, ml_dtypes.bfloat16
        text = dtype.__name__
    else:
        text = getattr(dtype, "name", None) or str(dtype).removeprefix("torch.")
    known = text if text in _NUMPY_NAMES else _NUMPY_TYPES.get(text)
    if known is None:
        raise InvalidArgumentError(f"weights cannot be published as {dtype}")
    return known


def spelled_out(name: str) -> str:
    """A type as torch, numpy and configurations spell it: "bfloat16" for "BF16"."""
    return _NUMPY_NAMES[name]


def torch_dtype(name: str, torch: Any) -> Any:
    found = getattr(torch, _NUMPY_NAMES.get(name, ""), None)
    if found is None:
        raise InvalidArgumentError(f"torch has no type for {name}")
    return found


def _torch_bits(name: str, tensor: Any, *, writable: bool) -> Bits:
    torch = _torch()
    tensor = tensor.detach()
    dtype = dtype_name(name, tensor)
    if tensor.device.type == "meta":
        raise InvalidArgumentError(f"'{name}' is on the meta device: it has no data")
    if not is_dense(tensor):
        raise InvalidArgumentError(f"'{name}' is a {tensor.layout} tensor, which no checkpoint can hold: make it dense")
    if writable and (tensor.device.type != "cpu" or not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg()):
        raise InvalidArgumentError(f"'{name}' cannot be followed into: it must be contiguous and in host memory")
    if tensor.device.type != "cpu":
        tensor = tensor.cpu()
    shape = tuple(tensor.shape)
    return Bits(dtype, shape, tensor.contiguous().view(-1).view(torch.uint8))


def _numpy_bits(name: str, array: np.ndarray, *, writable: bool) -> Bits:
    dtype = _NUMPY_TYPES.get(array.dtype.name)
    if dtype is None or array.dtype.byteorder == ">":
        raise InvalidArgumentError(f"'{name}' has the type {array.dtype}, which no checkpoint can hold")
    shape = array.shape
    if writable and not (array.flags.c_contiguous and array.flags.writeable):
        raise InvalidArgumentError(f"'{name}' cannot be followed into: it must be contiguous and writable")
    return Bits(dtype, shape, np.ascontiguousarray(array).reshape(-1).view(np.uint8))


def bits_of(name: str, value: Any, *, writable: bool = False) -> Bits:
    """The bits of a torch tensor, a numpy array, or anything else that speaks the array interface or the buffer
    protocol. With `writable`, its own memory or an error."""
    if is_torch_tensor(value):
        return _torch_bits(name, value, writable=writable)
    if isinstance(value, np.ndarray):
        return _numpy_bits(name, value, writable=writable)
    return _numpy_bits(name, as_numpy(name, value, writable=writable), writable=writable)


def as_numpy(name: str, value: Any, *, writable: bool = False) -> np.ndarray:
    """Whatever has `__array__` or the buffer protocol; with `writable`, only the latter, which cannot be a copy."""
    try:
        array: np.ndarray = np.asarray(memoryview(value)) if writable else np.asarray(value)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"'{name}' is a {type(value).__name__}, not an array: {error}") from None
    if array.dtype == object:
        raise InvalidArgumentError(f"'{name}' is a {type(value).__name__}, not an array")
    return array


def numpy_dtype(name: str) -> np.dtype:
    """numpy's type for one of safetensors; ml_dtypes knows the short floats."""
    numpy_name = _NUMPY_NAMES.get(name)
    if numpy_name is None:
        raise InvalidArgumentError(f"numpy has no type for {name}")
    try:
        return np.dtype(numpy_name)
    except TypeError:
        try:
            import ml_dtypes
        except ImportError:
            raise InvalidArgumentError(f"numpy has no {numpy_name} of its own: pip install ml_dtypes") from None
        dtype: np.dtype = np.dtype(getattr(ml_dtypes, numpy_name))
        return dtype


def to_numpy(dtype: str, shape: tuple[int, ...], data: np.ndarray) -> np.ndarray:
    return data.view(numpy_dtype(dtype)).reshape(shape)


def to_torch(dtype: str, shape: tuple[int, ...], data: np.ndarray) -> Any:
    import torch

    return torch.from_numpy(data).view(torch_dtype(dtype, torch)).reshape(shape)
