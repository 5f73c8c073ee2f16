"""The agent in each of vLLM's workers: its methods return a status and never raise. With several workers, an exception
in one would leave the other workers' answers in their queues, where the next question would find them.

Long tasks run on a thread while the engine runs steps; `start_task` starts one, and `task_status` tells when it is
ready."""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from weightwire.integrations.vllm._mirror import HeldVersion
from weightwire.integrations.vllm._parameter_map import ParameterMap, UpdateRefused, WeightsDiffer
from weightwire.integrations.vllm._prepared_update import PreparedUpdate

logger = logging.getLogger("vllm.weightwire")

Status = dict[str, Any]
"""`state` is one of the five below; `message` says more; `written` whether parameters may have changed."""
READY = "ready"
BUSY = "busy"
REFUSED = "refused"
"""The method raised `UpdateRefused`."""
DIFFERS = "differs"
"""The method raised `WeightsDiffer`."""
FAILED = "failed"
"""The method raised anything else, or could not start."""

_started = time.time()


def failed(message: str, *, state: str = FAILED, written: bool = False) -> Status:
    return {"state": state, "message": message, "written": written}


def _never_raises(method: Callable[..., Status]) -> Callable[..., Status]:
    @functools.wraps(method)
    def wrapped(self: WorkerAgent, *args: Any, **kwargs: Any) -> Status:
        try:
            return method(self, *args, **kwargs)
        except WeightsDiffer as error:
            return failed(str(error), state=DIFFERS)
        except UpdateRefused as error:
            return failed(str(error), state=REFUSED)
        except BaseException as error:
            logger.exception("weightwire: %s failed in a worker", method.__name__)
            return failed(f"{type(error).__name__}: {error}", written=self.writing)

    return wrapped


class WorkerAgent:
    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self._parameters: ParameterMap | None = None
        self._prepared: PreparedUpdate | None = None
        self._thread: threading.Thread | None = None
        self._status: Status = failed("no task was started")
        self.writing = False
        self._asleep = False
        self._delay_sleep(worker)

    def _delay_sleep(self, worker: Any) -> None:
        """Makes the worker's sleep() wait for a running task, because sleep frees the memory of the weights, which the
        task may be reading. Both are called on the thread that starts tasks, so none starts in between."""
        sleep, wake_up = worker.sleep, worker.wake_up

        @functools.wraps(sleep)
        def sleep_when_idle(*args: Any, **kwargs: Any) -> Any:
            self._asleep = True
            if self._thread is not None:
                self._thread.join()
            # Its views may be of memory that sleep frees, and the weights may differ after waking up.
            self._prepared = None
            return sleep(*args, **kwargs)

        @functools.wraps(wake_up)
        def wake_up_and_note(tags: list[str] | None = None, *args: Any, **kwargs: Any) -> Any:
            result = wake_up(tags, *args, **kwargs)
            if tags is None or "weights" in tags:
                self._asleep = False
            return result

        worker.sleep, worker.wake_up = sleep_when_idle, wake_up_and_note

    @_never_raises
    def open(self, mirror: str, written: float | None) -> Status:
        """Makes the parameter map. Called before the server takes requests, because it changes torch's defaults for a
        moment. `written`: when the mirror last changed; None: after the worker was started."""
        with torch.inference_mode():
            self._parameters = ParameterMap(self._worker.get_model(), self._worker.vllm_config, Path(mirror))
        # Otherwise parameters that cannot be compared were loaded from the mirror's present files.
        mirror_is_newer = written is None or written >= _started
        return {"state": READY, "mirror_is_newer": mirror_is_newer, **self._parameters.summary}

    @_never_raises
    def start_task(self, task: str, arguments: dict[str, Any]) -> Status:
        """Starts one of TASKS."""
        if self._parameters is None:
            return failed("a worker does not know the mirror")
        if self._asleep:
            return failed("the engine sleeps: its weights are not in memory")
        if self._thread is not None and self._thread.is_alive():
            return failed("a worker is busy with something else")
        self._prepared = None
        self._status = {"state": BUSY}
        self._thread = threading.Thread(target=self._run, args=(task, arguments), daemon=True, name="weightwire")
        self._thread.start()
        return self._status

    @_never_raises
    def task_status(self) -> Status:
        return self._status

    @_never_raises
    def commit(self, version: int, digest: str) -> Status:
        """Writes what was prepared, and reads it back. REQUIRES: no step runs, and the mirror holds the version."""
        prepared, self._prepared = self._prepared, None
        if self._parameters is None or prepared is None or prepared.version != version:
            return failed(f"version {version} was not prepared")
        start = time.perf_counter()
        if prepared.reload:
            self._parameters.check_mirror_holds(HeldVersion(version, digest))
        self.writing = True
        if not self._parameters.commit(prepared):
            return failed("what was written does not read back", written=True)
        self.writing = False
        return {"state": READY, "elements": prepared.elements, "seconds": time.perf_counter() - start}

    # --- tasks, on a thread ---

    def _run(self, task: str, arguments: dict[str, Any]) -> None:
        self._status = self._do(task, arguments)

    @_never_raises
    def _do(self, task: str, arguments: dict[str, Any]) -> Status:
        run = functools.partial(TASKS[task], self, self._parameters, **arguments)
        device = getattr(self._worker, "device", None)
        with torch.inference_mode():
            if device is None or device.type != "cuda":
                return run()
            torch.cuda.set_device(device)
            with torch.cuda.stream(torch.cuda.Stream()):
                status = run()
                torch.cuda.current_stream().synchronize()
            return status

    def check_can_change(self, parameters: ParameterMap, tensors: list[str]) -> Status:
        parameters.check_can_change(tensors)
        return {"state": READY}

    def prepare_change(self, parameters: ParameterMap, path: str, version: int) -> Status:
        return self._keep(parameters.prepare_change(Path(path), version))

    def prepare_mirror(self, parameters: ParameterMap, version: int, digest: str) -> Status:
        return self._keep(parameters.prepare_mirror(HeldVersion(version, digest)))

    def _keep(self, prepared: PreparedUpdate) -> Status:
        self._prepared = prepared
        return {"state": READY, "elements": prepared.elements, "reload": len(prepared.reload)}

    def compare(self, parameters: ParameterMap, recheck_stale: bool) -> Status:
        if recheck_stale:
            parameters.recheck_stale()
        elements, wrong = parameters.compare()
        if wrong is not None:
            return failed(f"'{wrong}' does not hold what the mirror does", state=DIFFERS)
        return {"state": READY, "elements": elements, **parameters.summary}


TASKS: dict[str, Callable[..., Status]] = {
    task.__name__: task
    for task in (
        WorkerAgent.check_can_change,
        WorkerAgent.prepare_change,
        WorkerAgent.prepare_mirror,
        WorkerAgent.compare,
    )
}


def weightwire_agent(worker: Any, method: str, *args: Any) -> Status:
    """The method that the plug-in adds to vLLM's workers. Calls a method of the worker's agent."""
    try:
        agent = worker.__dict__.get("_weightwire_agent")
        if agent is None:
            agent = worker._weightwire_agent = WorkerAgent(worker)
        status: Status = getattr(agent, method)(*args)
        return status
    except BaseException as error:
        return failed(f"{type(error).__name__}: {error}")
