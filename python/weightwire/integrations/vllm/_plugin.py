"""How the plug-in is turned on: the entry points that vLLM calls, and the options, which are environment variables."""

from __future__ import annotations

import logging
import multiprocessing
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from weightwire import _core
from weightwire.errors import InvalidArgumentError

logger = logging.getLogger("vllm.weightwire")

T = TypeVar("T")

_RUN = "WEIGHTWIRE_RUN"


def register() -> None:
    """`vllm.general_plugins`: called in every process of vLLM, perhaps several times. Adds the methods that `Engine`
    calls to workers and to the engine core; without a run it does nothing."""
    if _RUN not in os.environ:
        return
    import vllm.envs
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.worker.worker_base import WorkerBase

    from weightwire.integrations.vllm._engine import UTILITIES
    from weightwire.integrations.vllm._worker_agent import weightwire_agent

    # Without VLLM_PLUGINS vLLM calls this, but loads no plugin that has routes.
    if vllm.envs.VLLM_PLUGINS is None and multiprocessing.parent_process() is None:
        logger.warning("weightwire: %s is set, but nothing is followed: set VLLM_PLUGINS=weightwire too", _RUN)
    setattr(WorkerBase, weightwire_agent.__name__, weightwire_agent)
    for utility in UTILITIES:
        setattr(EngineCore, utility.__name__, utility)


def endpoint() -> Any:
    """`vllm.endpoint_plugins`: called in every API server, if VLLM_PLUGINS names the plug-in."""
    from weightwire.integrations.vllm._endpoint import Endpoint

    return Endpoint()


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
    """WEIGHTWIRE_INTERVAL: the shortest time between two commits."""
    poll_interval: float = _core.POLL_SECONDS
    """WEIGHTWIRE_POLL: the time between two requests for a newer version."""
    check_all: bool = True
    """WEIGHTWIRE_CHECK: "full" (the default) compares all readable parameters with the mirror, in the background after
    a commit; "commit" compares only what was written, in the commit."""
    check_interval: float = 60.0
    """WEIGHTWIRE_CHECK_INTERVAL: the shortest time between two full comparisons."""

    @staticmethod
    def from_environment(environment: Mapping[str, str] = os.environ) -> Options | None:
        """None if there is no run to follow.

        >>> Options.from_environment({"WEIGHTWIRE_RUN": "s3://bucket/run", "WEIGHTWIRE_MAX_LAG": "2"}).max_lag
        2
        >>> Options.from_environment({}) is None
        True
        """
        run = environment.get(_RUN, "")
        if not run:
            return None
        read = _Reader(environment)
        mirror = environment.get("WEIGHTWIRE_MIRROR")
        options = Options(
            run=run,
            mirror=Path(mirror) if mirror else None,
            every_version=read("WEIGHTWIRE_VERSIONS", {"newest": False, "every": True}.__getitem__, "newest"),
            max_lag=read("WEIGHTWIRE_MAX_LAG", _at_least_zero, "0"),
            min_update_interval=read("WEIGHTWIRE_INTERVAL", _core.parse_duration, "0"),
            poll_interval=read("WEIGHTWIRE_POLL", _above_zero, f"{Options.poll_interval}s"),
            check_all=read("WEIGHTWIRE_CHECK", {"full": True, "commit": False}.__getitem__, "full"),
            check_interval=read("WEIGHTWIRE_CHECK_INTERVAL", _core.parse_duration, f"{Options.check_interval}s"),
        )
        if options.every_version and options.max_lag > 0:
            raise InvalidArgumentError(
                "WEIGHTWIRE_VERSIONS=every skips no version, but WEIGHTWIRE_MAX_LAG allows a lag; set one of them"
            )
        return options


def _at_least_zero(text: str) -> int:
    if int(text) < 0:
        raise ValueError(text)
    return int(text)


def _above_zero(text: str) -> float:
    """An interval, as the command's --poll-interval takes it."""
    seconds = _core.parse_duration(text)
    if seconds == 0:
        raise InvalidArgumentError("it cannot be zero; write for example 500ms or 2s")
    return seconds


class _Reader:
    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment

    def __call__(self, name: str, read: Callable[[str], T], default: str) -> T:
        text = self._environment.get(name, default)
        try:
            return read(text)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{name}: {error}") from None
        except (ValueError, KeyError):
            raise InvalidArgumentError(f"{name} is '{text}', which means nothing; see docs/vllm.md") from None
