"""The arrays that a follower writes to, as the core takes them: name, type, shape and writable bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from weightwire._dtypes import as_numpy, dtype_name, is_dense, is_torch_tensor
from weightwire._model_state import check_names, plain_names
from weightwire.errors import InvalidArgumentError


def target_arrays(target: Mapping[str, Any]) -> list[tuple[str, str, tuple[int, ...], Any]]:
    """Lists tied arrays under each of their names, because both names must show the new weights."""
    check_names(target)
    return [(name, *_writable_bytes(name, array)) for name, array in plain_names(target).items()]


def _writable_bytes(name: str, value: Any) -> tuple[str, tuple[int, ...], Any]:
    """Type, shape, and a flat view of the array's own memory as uint8. Raises if that would be a copy."""
    if is_torch_tensor(value):
        return _torch_bytes(name, value)
    array = value if isinstance(value, np.ndarray) else as_numpy(name, value, writable=True)
    dtype = dtype_name(name, array)
    if not (array.flags.c_contiguous and array.flags.writeable):
        raise InvalidArgumentError(f"'{name}' cannot be followed into: it must be contiguous and writable")
    return dtype, array.shape, array.reshape(-1).view(np.uint8)


def _torch_bytes(name: str, tensor: Any) -> tuple[str, tuple[int, ...], Any]:
    import torch

    tensor = tensor.detach()
    dtype = dtype_name(name, tensor)
    if tensor.device.type == "meta":
        raise InvalidArgumentError(f"'{name}' is on the meta device: it has no data")
    if not is_dense(tensor):
        raise InvalidArgumentError(f"'{name}' is a {tensor.layout} tensor, which no checkpoint can hold: make it dense")
    if tensor.device.type != "cpu" or not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
        raise InvalidArgumentError(f"'{name}' cannot be followed into: it must be contiguous and in host memory")
    return dtype, tuple(tensor.shape), tensor.view(-1).view(torch.uint8)
