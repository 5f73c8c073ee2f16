"""What a worker does when it is asked to. Every method returns a status and never raises: with several workers, an
exception in one would leave the answers of the others in their queues, for the next question.

Work that takes long is done on a thread, and asked after until it is ready; steps run meanwhile.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from weightwire.integrations.vllm.holding import Differs, Holding, Prepared, Refused
from weightwire.integrations.vllm.mirror import MirrorHeld

logger = logging.getLogger("vllm.weightwire")

Status = dict[str, Any]
"""`state` is "ready", "busy", "refused" (it cannot be done exactly), "differs" (the parameters hold something else than
was believed) or "failed"; `message` says more; `written` whether parameters may have changed."""

_started = time.time()


def failed(message: str, *, state: str = "failed", written: bool = False) -> Status:
    return {"state": state, "message": message, "written": written}


def _never_raises(method: Callable[..., Status]) -> Callable[..., Status]:
    @functools.wraps(method)
    def wrapped(self: WorkerSide, *args: Any, **kwargs: Any) -> Status:
        try:
            return method(self, *args, **kwargs)
        except Differs as error:
            return failed(str(error), state="differs")
        except Refused as error:
            return failed(str(error), state="refused")
        except BaseException as error:
            logger.exception("weightwire: %s failed in a worker", method.__name__)
            return failed(f"{type(error).__name__}: {error}", written=self.writing)

    return wrapped


class WorkerSide:
    """Kept by each worker."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self._holding: Holding | None = None
        self._prepared: Prepared | None = None
        self._thread: threading.Thread | None = None
        self._answer: Status = failed("nothing was asked for")
        self.writing = False
        self._asleep = False
        self._watch_sleep(worker)

    def _watch_sleep(self, worker: Any) -> None:
        """An engine that is put to sleep gives back the memory of its weights, which a task may be reading: it waits
        for that first. Asked for on the thread that starts tasks, so none begins meanwhile."""
        sleep, wake_up = worker.sleep, worker.wake_up

        @functools.wraps(sleep)
        def sleep_when_idle(*args: Any, **kwargs: Any) -> Any:
            self._asleep = True
            if self._thread is not None:
                self._thread.join()
            # It may hold views of what is given back, and the weights may come back as others.
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
        """Learns where things are. Before the server takes requests, since it changes torch's defaults for a moment.
        `written` says when the mirror last changed; None: just now."""
        with torch.inference_mode():
            self._holding = Holding(self._worker.get_model(), self._worker.vllm_config, Path(mirror))
        # What cannot be read must have been loaded from what lies there now.
        young = written is None or written >= _started
        return {"state": "ready", "young": young, **self._holding.summary}

    @_never_raises
    def begin(self, task: str, arguments: dict[str, Any]) -> Status:
        """Starts one of the tasks below; `poll` tells when it is ready."""
        if self._holding is None:
            return failed("a worker does not know the mirror")
        if self._asleep:
            return failed("the engine sleeps: its weights are not in memory")
        if self._thread is not None and self._thread.is_alive():
            return failed("a worker is busy with something else")
        self._prepared = None
        self._answer = {"state": "busy"}
        self._thread = threading.Thread(target=self._run, args=(task, arguments), daemon=True, name="weightwire")
        self._thread.start()
        return self._answer

    @_never_raises
    def poll(self) -> Status:
        return self._answer

    @_never_raises
    def commit(self, version: int, digest: str) -> Status:
        """Writes what was prepared, and reads it back. Between two steps. The mirror holds that by now."""
        prepared, self._prepared = self._prepared, None
        if self._holding is None or prepared is None or prepared.version != version:
            return failed(f"version {version} was not prepared")
        start = time.perf_counter()
        if prepared.reload:
            self._holding.check_mirror_holds(MirrorHeld(version, digest))
        self.writing = True
        if not self._holding.commit(prepared):
            return failed("what was written does not read back", written=True)
        self.writing = False
        return {"state": "ready", "elements": prepared.elements, "seconds": time.perf_counter() - start}

    # --- tasks, on a thread ---

    def _run(self, task: str, arguments: dict[str, Any]) -> None:
        self._answer = self._do(task, arguments)

    @_never_raises
    def _do(self, task: str, arguments: dict[str, Any]) -> Status:
        tasks: dict[str, Callable[..., Status]] = {
            "may_change": self._may_change,
            "prepare_change": self._prepare_change,
            "prepare_mirror": self._prepare_mirror,
            "check": self._check,
        }
        device = getattr(self._worker, "device", None)
        with torch.inference_mode():
            if device is None or device.type != "cuda":
                return tasks[task](self._holding, **arguments)
            torch.cuda.set_device(device)
            with torch.cuda.stream(torch.cuda.Stream()):
                answer = tasks[task](self._holding, **arguments)
                torch.cuda.current_stream().synchronize()
            return answer

    def _may_change(self, holding: Holding, tensors: list[str]) -> Status:
        holding.may_change(tensors)
        return {"state": "ready"}

    def _prepare_change(self, holding: Holding, path: str, version: int) -> Status:
        return self._ready(holding.prepare_change(Path(path), version))

    def _prepare_mirror(self, holding: Holding, version: int, digest: str) -> Status:
        return self._ready(holding.prepare_mirror(MirrorHeld(version, digest)))

    def _ready(self, prepared: Prepared) -> Status:
        self._prepared = prepared
        return {"state": "ready", "elements": prepared.elements, "reload": len(prepared.reload)}

    def _check(self, holding: Holding, settle: bool) -> Status:
        if settle:
            holding.settle_stale()
        elements, wrong = holding.check()
        if wrong is not None:
            return failed(f"'{wrong}' does not hold what the mirror does", state="differs")
        return {"state": "ready", "elements": elements, **holding.summary}


def weightwire(worker: Any, method: str, *args: Any) -> Status:
    """The one method added to vLLM's workers."""
    try:
        side = worker.__dict__.get("_weightwire_side")
        if side is None:
            side = worker._weightwire_side = WorkerSide(worker)
        answer: Status = getattr(side, method)(*args)
        return answer
    except BaseException as error:
        return failed(f"{type(error).__name__}: {error}")
