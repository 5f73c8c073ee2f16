"""The plug-in's options, which come from environment variables."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from weightwire.errors import InvalidArgumentError

T = TypeVar("T")


@dataclass(frozen=True)
class Options:
    run: str
    """WEIGHTWIRE_RUN: where the run is."""
    mirror: Path | None = None
    """WEIGHTWIRE_MIRROR: the mirror; by default the directory that is served."""
    every_version: bool = False
    """WEIGHTWIRE_VERSIONS: "newest" (the default) or "every"."""
    max_lag: int = 0
    """WEIGHTWIRE_MAX_LAG: update once the engine is more than this number of versions behind."""
    min_update_interval: float = 0.0
    """WEIGHTWIRE_INTERVAL: at least this many seconds between two commits."""
    poll_interval: float = 0.5
    """WEIGHTWIRE_POLL: seconds between two requests for a newer version."""
    check_all: bool = True
    """WEIGHTWIRE_CHECK: "full" (the default) compares all readable parameters with the mirror, in the background after
    a commit; "commit" compares only what was written, in the commit."""
    check_interval: float = 60.0
    """WEIGHTWIRE_CHECK_INTERVAL: at least this many seconds between two full comparisons."""

    @staticmethod
    def from_environment(environment: Mapping[str, str] = os.environ) -> Options | None:
        """None if there is no run to follow.

        >>> Options.from_environment({"WEIGHTWIRE_RUN": "s3://bucket/run", "WEIGHTWIRE_MAX_LAG": "2"}).max_lag
        2
        >>> Options.from_environment({}) is None
        True
        """
        run = environment.get("WEIGHTWIRE_RUN", "")
        if not run:
            return None
        read = _Reader(environment)
        mirror = environment.get("WEIGHTWIRE_MIRROR")
        options = Options(
            run=run,
            mirror=Path(mirror) if mirror else None,
            every_version=read("WEIGHTWIRE_VERSIONS", {"newest": False, "every": True}.__getitem__, "newest"),
            max_lag=read("WEIGHTWIRE_MAX_LAG", _at_least_zero(int), "0"),
            min_update_interval=read("WEIGHTWIRE_INTERVAL", _at_least_zero(float), "0"),
            poll_interval=read("WEIGHTWIRE_POLL", _at_least_zero(float), "0.5"),
            check_all=read("WEIGHTWIRE_CHECK", {"full": True, "commit": False}.__getitem__, "full"),
            check_interval=read("WEIGHTWIRE_CHECK_INTERVAL", _at_least_zero(float), "60"),
        )
        if options.every_version and options.max_lag > 0:
            raise InvalidArgumentError(
                "WEIGHTWIRE_VERSIONS=every skips no version, but WEIGHTWIRE_MAX_LAG allows a lag; set one of them"
            )
        return options


def _at_least_zero(kind: Callable[[str], T]) -> Callable[[str], T]:
    def read(text: str) -> T:
        value = kind(text)
        if not value >= 0:  # type: ignore[operator]
            raise ValueError(text)
        return value

    return read


class _Reader:
    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment

    def __call__(self, name: str, read: Callable[[str], T], default: str) -> T:
        text = self._environment.get(name, default)
        try:
            return read(text)
        except (ValueError, KeyError):
            raise InvalidArgumentError(f"{name} is '{text}', which means nothing; see docs/vllm.md") from None
