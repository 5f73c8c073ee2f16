"""Reads the weights on a background thread while training continues. A hook makes `optimizer.step()` wait for the read;
other code must first call `wait_read()`. torch's version counters reveal most violations."""

from __future__ import annotations

import inspect
import threading
import time
import weakref
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from weightwire._forks import OwnerProcess
from weightwire._model_state import unwrap
from weightwire.errors import InvalidArgumentError

T = TypeVar("T")
Result = TypeVar("Result")


class BackgroundRead(Generic[T]):
    """A thread that reads for one call of publish at a time. Thread safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._future: Future[T] | None = None  # until its result was seen
        self._thread: threading.Thread | None = None
        self._blocked_seconds = 0.0

    @property
    def reading(self) -> Future[T] | None:
        """The read that runs, or that finished and whose result was not seen yet."""
        return self._future

    @property
    def is_reading(self) -> bool:
        future = self._future
        return future is not None and not future.done()

    @property
    def blocked_seconds(self) -> float:
        """How long `timed` calls took in all."""
        return self._blocked_seconds

    def start(self, read: Callable[[], T]) -> Future[T]:
        """REQUIRES: `wait` was called for the previous read, and no other thread starts one now."""
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(read())
            except BaseException as error:  # the waiting thread raises it
                future.set_exception(error)

        # A daemon, because at the interpreter's end the publisher stops what this thread waits for, and then joins it.
        thread = threading.Thread(target=run, name="weightwire-read", daemon=True)
        try:
            with self._lock:
                self._future, self._thread = future, thread
            thread.start()
        except BaseException:  # no thread can be started, or Ctrl-C
            if future.cancel():  # otherwise it reads, and the next call of publish waits for it
                with self._lock:
                    self._future = self._thread = None
            raise
        return future

    def wait_finished(self, timeout: float | None = None, future: Future[T] | None = None) -> bool:
        """Waits until `future`, or the current read, has finished. Returns False on timeout, and never raises its
        error."""
        future = future or self._future
        return future is None or bool(futures.wait([future], timeout).done)

    def wait(self, future: Future[T] | None = None) -> None:
        """Waits until `future`, or the current read, has finished. Raises its error, to the first caller only."""
        future = future or self._future
        if future is not None:
            futures.wait([future])
            if self.mark_seen(future):
                future.result()

    def mark_seen(self, future: Future[T]) -> bool:
        """Marks a finished read as seen. Returns True on the first call. REQUIRES: it is done."""
        with self._lock:
            first = self._future is future
            if first:
                self._future = None
            return first

    def timed(self, function: Callable[[], Result]) -> Result:
        """Calls it, and adds the time to `blocked_seconds`."""
        start = time.monotonic()
        try:
            return function()
        finally:
            with self._lock:
                self._blocked_seconds += time.monotonic() - start

    def join(self) -> None:
        """Waits until the thread has ended."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()


def finished_read(value: T) -> Future[T]:
    """A read that was done in the foreground."""
    future: Future[T] = Future()
    future.set_result(value)
    return future


class StepGate:
    """Makes an optimizer's steps wait while the weights are read."""

    def __init__(self, optimizer: Any, background: BackgroundRead[Any]) -> None:
        # A weak reference, because an optimizer may outlive the publisher.
        process, known = OwnerProcess(), weakref.ref(background)

        def before_step(*_: Any) -> None:
            reading = known()
            if reading is not None and not process.is_a_fork:
                reading.timed(reading.wait)

        self._handle = stepping_optimizer(optimizer).register_step_pre_hook(before_step)

    def remove(self) -> None:
        self._handle.remove()


def stepping_optimizer(optimizer: Any) -> Any:
    """The optimizer inside accelerate's wrappers, whose step changes the weights."""
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    if not hasattr(optimizer, "register_step_pre_hook"):
        raise InvalidArgumentError(f"optimizer= takes an optimizer of torch, not a {type(optimizer).__name__}")
    import torch

    own_step = inspect.unwrap(type(optimizer).step)
    if own_step is inspect.unwrap(torch.optim.Optimizer.step) or hasattr(optimizer, "fused_backward"):
        raise InvalidArgumentError(
            f"a {type(optimizer).__name__} changes the weights during the backward pass, so they cannot be read then: "
            "publish without optimizer="
        )
    return optimizer


def check_optimizer(model: Any, optimizer: Any) -> None:
    """Raises unless the optimizer's step changes all trained parameters of a module. A mapping cannot be checked."""
    stepped = {id(parameter) for group in stepping_optimizer(optimizer).param_groups for parameter in group["params"]}
    if not hasattr(model, "named_parameters"):
        return
    for name, parameter in unwrap(model).named_parameters():
        if parameter.requires_grad and id(parameter) not in stepped:
            raise InvalidArgumentError(
                f"'{name}' is trained, and not by this optimizer: publish without optimizer=, which waits until the "
                "weights have been read"
            )
