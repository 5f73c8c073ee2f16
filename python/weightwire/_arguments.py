"""Checks of arguments, because the binding takes them unchecked."""

from __future__ import annotations

import math
import operator
from typing import Any

from weightwire.errors import InvalidArgumentError


def whole_number(what: str, value: Any, *, least: int = 0, none_means: str = "") -> int:
    """The value as an int. numpy's integers count too. `none_means`: what None stands for, if it may be given."""
    otherwise = f", or None for {none_means}" if none_means else ""
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidArgumentError(f"{what} is a whole number{otherwise}, not a {type(value).__name__}") from None
    if not least <= number < 2**63:
        raise InvalidArgumentError(f"{what} is a whole number of at least {least}{otherwise}, not {number}")
    return number


def seconds(what: str, value: Any, *, least: float | None = None) -> float:
    """The value as a number of seconds: above 0, or at least `least`."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise InvalidArgumentError(f"{what} is a number of seconds, not a {type(value).__name__}") from None
    is_large_enough = number > 0 if least is None else number >= least
    if not is_large_enough or math.isinf(number):
        bound = "above 0" if least is None else f"of at least {least:g}"
        raise InvalidArgumentError(f"{what} is a number of seconds {bound}, not {number}")
    return number
