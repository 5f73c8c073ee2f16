"""What type checkers take for a model: protocols, so that this package needs neither torch nor its types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias


class Module(Protocol):
    """A torch module, or anything that lists its parameters as one does."""

    def state_dict(self, *args: Any, **kwargs: Any) -> Any: ...
    def named_parameters(self, *args: Any, **kwargs: Any) -> Any: ...


class SupportsArray(Protocol):
    """numpy arrays, torch tensors on the host, and many others."""

    def __array__(self, *args: Any, **kwargs: Any) -> Any: ...


class SupportsDlpack(Protocol):
    """torch tensors, also on devices, jax arrays, and others."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...


ArrayLike: TypeAlias = SupportsArray | SupportsDlpack | memoryview | bytearray
"""What may be published as a tensor. Other objects with the buffer protocol may be too, but have no type before Python
3.12."""

Model: TypeAlias = Module | Mapping[str, ArrayLike]
