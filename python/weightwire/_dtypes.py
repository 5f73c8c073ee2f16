"""Names of tensor types. safetensors, numpy and torch spell them differently: "BF16", "bfloat16", torch.bfloat16."""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any

import numpy as np

from weightwire.errors import InvalidArgumentError

_SAFETENSORS_NAMES = {
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
    # numpy has these from the package ml_dtypes.
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
}
# numpy and torch use the same long names.
_LONG_NAMES = {short: long for long, short in _SAFETENSORS_NAMES.items()}

FLOATS = ("F64", "F32", "F16", "BF16")
"""The types that `dtype=` of a publisher converts."""


@lru_cache(maxsize=256)
def _known_name(dtype: Any) -> str | None:
    return _SAFETENSORS_NAMES.get(str(dtype).removeprefix("torch."))


def dtype_name(name: str, array: Any) -> str:
    """The safetensors name of the type of a torch tensor or a numpy array. `name` is for the error message."""
    known = _known_name(array.dtype)
    if known is None:
        raise InvalidArgumentError(f"'{name}' has the type {array.dtype}, which no checkpoint can hold")
    return known


def parse_dtype(dtype: Any) -> str:
    """The safetensors name of a type that the user gave: torch.bfloat16, np.float16, "bfloat16" or "BF16"."""
    if isinstance(dtype, type):  # np.float16, ml_dtypes.bfloat16
        text = dtype.__name__
    else:
        text = getattr(dtype, "name", None) or str(dtype).removeprefix("torch.")
    known = text if text in _LONG_NAMES else _SAFETENSORS_NAMES.get(text)
    if known is None:
        raise InvalidArgumentError(
            f"weights cannot be published as {dtype!r}: give torch.bfloat16, torch.float16 or torch.float32 (or their "
            'names, "bfloat16" and so on), or weightwire.Fp8()'
        )
    return known


def long_name(name: str) -> str:
    """The name that torch, numpy and configurations use: "bfloat16" for "BF16"."""
    return _LONG_NAMES[name]


def torch_dtype(name: str) -> Any:
    """torch's type for a safetensors name."""
    import torch

    found = getattr(torch, _LONG_NAMES.get(name, ""), None)
    if found is None:
        raise InvalidArgumentError(f"torch has no type for {name}")
    return found


def numpy_dtype(name: str) -> np.dtype:
    """numpy's type for a safetensors name. The package ml_dtypes has the short floats."""
    long = _LONG_NAMES.get(name)
    if long is None:
        raise InvalidArgumentError(f"numpy has no type for {name}")
    try:
        return np.dtype(long)
    except TypeError:
        try:
            import ml_dtypes
        except ImportError:
            raise InvalidArgumentError(f"numpy has no {long} of its own: pip install ml_dtypes") from None
        dtype: np.dtype = np.dtype(getattr(ml_dtypes, long))
        return dtype


def to_numpy(dtype: str, shape: tuple[int, ...], data: np.ndarray) -> np.ndarray:
    """A numpy array over `data`, which holds its bytes."""
    return data.view(numpy_dtype(dtype)).reshape(shape)


def to_torch(dtype: str, shape: tuple[int, ...], data: np.ndarray) -> Any:
    """A torch tensor over `data`, which holds its bytes."""
    import torch

    return torch.from_numpy(data).view(torch_dtype(dtype)).reshape(shape)


def is_torch_tensor(value: object) -> bool:
    # Does not import torch: before something else has imported it, no value can be a tensor.
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_dense(tensor: Any) -> bool:
    """Returns False for sparse torch tensors, whose elements are not at regular distances in memory."""
    return bool(tensor.layout == sys.modules["torch"].strided)


def as_numpy(name: str, value: Any, *, writable: bool = False) -> np.ndarray:
    """An array over anything with `__array__` or the buffer protocol. With `writable` only the latter counts, because
    `__array__` may return a copy."""
    array: np.ndarray | None = None
    why = ""
    try:
        if _has_buffer(value):
            array = np.asarray(memoryview(value)) if writable else np.asarray(value)
        elif hasattr(value, "__array__") and not writable:  # a number or a list is a mistake
            array = np.asarray(value)
    except (TypeError, ValueError) as error:
        why = f": {error}"
    if array is None or array.dtype == object:
        raise InvalidArgumentError(
            f"'{name}' is of the type {type(value).__name__}, which is not an array or a tensor{why}"
        )
    return array


def _has_buffer(value: Any) -> bool:
    try:
        memoryview(value).release()
    except (TypeError, ValueError):  # numpy has no buffer for some of its own types
        return False
    return True
