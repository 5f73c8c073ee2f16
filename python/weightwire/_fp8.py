"""Publishing linear layers as fp8 with scales."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from weightwire import _core
from weightwire._conversion import (
    BLOCK,
    LARGEST_E4M3,
    CoreTensor,
    LazyTensor,
    TorchBatchReader,
    core_tensor,
    host_memory,
    plain_array,
)
from weightwire._dtypes import FLOATS, dtype_name, is_torch_tensor, parse_dtype, torch_dtype
from weightwire.errors import InvalidArgumentError


def check_published_dtype(dtype: Any) -> None:
    """Raises unless floating-point tensors can be published as this: an Fp8, a floating-point type, or None."""
    if dtype is None or isinstance(dtype, Fp8):
        return
    if "F" not in parse_dtype(dtype):
        raise InvalidArgumentError(
            f"weights cannot be published as {dtype!r}: give a floating-point type, such as torch.bfloat16, or "
            "weightwire.Fp8()"
        )


@dataclass(frozen=True)
class Fp8:
    """Publishes linear layers as fp8, as the fp8 checkpoints on the Hub have them: `weight` as F8_E4M3, and beside it
    `weight_scale_inv`, with a scale for each block of 128 by 128. Give it to a publisher as `dtype`.

    A block's scale is its largest absolute value / 448; elements are divided by it and rounded as torch does. Tensors
    that are no linear layers' weights, and those whose names match one of `ignore` (regular expressions, by default the
    output layer and routers), are published as `dtype`.

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
    ignore: Sequence[str] = ("lm_head", r"\.gate\.")
    dtype: Any = "bfloat16"

    def __post_init__(self) -> None:
        if self.scales not in ("float32", "power_of_two"):
            raise InvalidArgumentError('the scales of Fp8 are "float32" or "power_of_two"')
        ignore = (self.ignore,) if isinstance(self.ignore, str) else tuple(self.ignore)
        object.__setattr__(self, "ignore", ignore)
        for pattern in ignore:
            try:
                re.compile(pattern)
            except (re.error, TypeError) as error:
                raise InvalidArgumentError(f"{pattern!r} in ignore= of Fp8 is no regular expression: {error}") from None
        check_published_dtype(self.dtype)

    def ignores(self, name: str) -> bool:
        return any(re.search(pattern, name) for pattern in self.ignore)

    def quantizes(self, name: str, linear: bool) -> bool:
        return linear and name.endswith(".weight") and not self.ignores(name)

    def configuration(self, kept: list[str]) -> dict[str, Any]:
        """`quantization_config` of config.json, with the modules that are not quantized."""
        described: dict[str, Any] = {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [BLOCK, BLOCK],
            "modules_to_not_convert": kept,
        }
        if self.scales == "power_of_two":
            described["scale_fmt"] = "ue8m0"
        return described


def fp8_tensors(name: str, value: Any, fp8: Fp8) -> list[CoreTensor]:
    """A matrix as F8_E4M3, and its scales."""
    if isinstance(value, LazyTensor):
        raise InvalidArgumentError(f"'{name}' cannot be published as fp8: merge the adapters first")
    power_of_two = fp8.scales == "power_of_two"
    value = plain_array(name, value)
    memory = host_memory(name, value)
    dtype = memory.dtype if memory is not None else dtype_name(name, value)
    reader: _core.Reader
    if memory is not None and dtype in ("F32", "BF16"):
        scales = _core.block_scales(*memory[1:], power_of_two)
        reader = _core.converting_reader(*memory, "F8_E4M3", scales)
    else:
        if not is_torch_tensor(value) or dtype not in FLOATS:
            raise InvalidArgumentError(f"'{name}' cannot be published as fp8 from {dtype}")
        scales = block_scales(value, power_of_two=power_of_two)
        reader = _core.calling_reader(TorchBatchReader(value, torch_dtype("F8_E4M3"), scales), "F8_E4M3")
    return [(name, "F8_E4M3", tuple(value.shape), reader), core_tensor(f"{name}_scale_inv", scales, None)]


def block_scales(tensor: Any, *, power_of_two: bool) -> Any:
    """The scales that `_core.block_scales` computes, for a tensor that the core cannot read."""
    import torch

    rows, columns = tensor.shape
    bands = []
    for start in range(0, rows, BLOCK):  # a band of blocks at a time
        band = tensor[start : start + BLOCK].detach().abs().float().amax(dim=0)
        missing = -columns % BLOCK
        bands.append(torch.nn.functional.pad(band, (0, missing)).reshape(-1, BLOCK).amax(dim=1))
    # On the host, because a GPU divides by a constant as a multiplication by its inverse, which rounds differently.
    largest = torch.stack(bands).cpu()
    scales = torch.where(largest == 0, torch.ones_like(largest), largest / LARGEST_E4M3)
    if power_of_two:
        mantissa, exponent = torch.frexp(scales)
        rounded = torch.ldexp(torch.ones_like(scales), torch.where(mantissa == 0.5, exponent - 1, exponent))
        scales = torch.where((largest == 0) | ~scales.isfinite(), scales, rounded)
    return scales.to(tensor.device)
