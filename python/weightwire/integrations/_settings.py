"""The settings of engines that follow a run: variables of the environment, as the table in src/runner/settings.h has
them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weightwire import _core
from weightwire.errors import InvalidArgumentError

# The variable that turns a plug-in on.
RUN = "WEIGHTWIRE_RUN"


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """One field for each setting of engines. docs/vllm.md says what they do."""

    run: str
    mirror: Path | None
    every_version: bool
    max_lag: int
    min_update_interval: float
    poll_interval: float
    verify: str
    """"full" or "commit"."""
    verify_interval: float
    pin: int | None
    name: str
    lease: bool
    threads: int | None
    max_bytes_per_second: int | None

    @staticmethod
    def from_environment(environment: Mapping[str, str] = os.environ) -> EngineSettings | None:
        """Returns None without a run. Raises `InvalidArgumentError` for a value that a setting cannot have.

        >>> EngineSettings.from_environment({"WEIGHTWIRE_RUN": "s3://bucket/run", "WEIGHTWIRE_MAX_LAG": "2"}).max_lag
        2
        >>> EngineSettings.from_environment({}) is None
        True
        """
        if not environment.get(RUN):
            return None
        settings = EngineSettings(**{row["python_name"]: _value(row, environment) for row in engine_settings()})
        if settings.every_version and settings.max_lag > 0:
            raise InvalidArgumentError(
                "WEIGHTWIRE_EVERY_VERSION skips no version, but WEIGHTWIRE_MAX_LAG waits for several; set only one"
            )
        return settings


def engine_settings() -> list[dict[str, Any]]:
    """The rows of the table that concern engines."""
    return [row for row in _core.settings() if row["engine"]]


def _value(row: dict[str, Any], environment: Mapping[str, str]) -> Any:
    """An empty variable counts as none, as shells and process managers often cannot remove one."""
    name = row["environment"]
    text = environment.get(name) or row["default"]
    if not text:
        return "" if row["type"] == "text" else None
    try:
        value = _READERS[row["type"]](text)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{name}: {error}") from None
    except ValueError:
        raise InvalidArgumentError(f"{name} is '{text}'; it must be a whole number, 0 or more") from None
    if row["choices"] and value not in row["choices"]:
        raise InvalidArgumentError(f"{name} is '{text}'; it must be one of: {', '.join(row['choices'])}")
    if row["positive"] and value == 0:
        raise InvalidArgumentError(f"{name} is '{text}'; it must be above 0")
    return value


def _whole_number(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise ValueError(text)
    return int(text)


_READERS: dict[str, Callable[[str], Any]] = {
    "flag": _core.parse_flag,
    "count": _whole_number,
    "version": _whole_number,
    "duration": _core.parse_duration,
    "size": _core.parse_size,
    "path": Path,
    "text": str,
    "choice": str,
}
