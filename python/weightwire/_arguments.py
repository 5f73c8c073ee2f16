"""Checks of arguments, because the binding takes them unchecked."""

from __future__ import annotations

import math
import operator
from typing import Any

from weightwire.errors import InvalidArgumentError


def whole_number(what: str, value: Any, *, least: int = 0) -> int:
    """The value as an int. numpy's integers count too."""
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidArgumentError(f"{what} is a whole number, not a {type(value).__name__}") from None
    if not least <= number < 2**63:
        raise InvalidArgumentError(f"{what} is a whole number of at least {least}, not {number}")
    return number


def seconds(what: str, value: Any) -> float:
    """The value as a number of seconds above 0."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise InvalidArgumentError(f"{what} is a number of seconds, not a {type(value).__name__}") from None
    if not number > 0 or math.isinf(number):
        raise InvalidArgumentError(f"{what} is a number of seconds above 0, not {number}")
    return number
