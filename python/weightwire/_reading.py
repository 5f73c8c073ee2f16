"""Reading the weights while their owner goes on. Who changes them must wait until they have been read: an optimizer
does so by itself. Of what changes them all the same, most is found out by torch's count of writes."""

from __future__ import annotations

import inspect
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from typing import Any, Generic, TypeVar

from weightwire._arrays import is_torch_tensor
from weightwire._forks import Process
from weightwire._state import unwrap
from weightwire.errors import InvalidArgumentError

T = TypeVar("T")


class Background(Generic[T]):
    """A thread that reads, for one publish at a time. Safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._future: Future[T] | None = None  # not settled
        self._thread: threading.Thread | None = None
        self._held_seconds = 0.0

    @property
    def reading(self) -> Future[T] | None:
        """What is being read, or was and nobody has seen what became of it."""
        return self._future

    @property
    def is_reading(self) -> bool:
        future = self._future
        return future is not None and not future.done()

    @property
    def held_seconds(self) -> float:
        """How long `holding` has held its callers."""
        return self._held_seconds

    def start(self, read: Callable[[], T]) -> Future[T]:
        """REQUIRES: the one before was settled, and nobody else starts one."""
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()

        def run() -> None:
            try:
                future.set_result(read())
            except BaseException as error:  # whoever waits is to see it
                future.set_exception(error)

        # A daemon: at the end of the interpreter, who owns it stops what it waits for, and then joins it.
        thread = threading.Thread(target=run, name="weightwire-read", daemon=True)
        thread.start()
        with self._lock:
            self._future, self._thread = future, thread
        return future

    def finished(self, timeout: float | None = None, future: Future[T] | None = None) -> bool:
        """Waits until this one, or what is being read now, has been; false when the time is up before."""
        future = future or self._future
        return future is None or bool(wait([future], timeout).done)

    def settle(self, future: Future[T] | None = None) -> None:
        """Until this one, or what is being read now, has been. Raises what went wrong with it, to one who asks."""
        future = future or self._future
        if future is not None:
            wait([future])
            if self.see(future):
                future.result()

    def see(self, future: Future[T]) -> bool:
        """Whether nobody has seen before what became of this one; now somebody has. REQUIRES: it is done."""
        with self._lock:
            first = self._future is future
            if first:
                self._future = None
            return first

    def holding(self, function: Callable[[], Any]) -> Any:
        """Calls it, and counts the time."""
        start = time.monotonic()
        try:
            return function()
        finally:
            with self._lock:
                self._held_seconds += time.monotonic() - start

    def join(self) -> None:
        """Until the thread has ended, however it did."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()


def read_already(value: T) -> Future[T]:
    """What need not be waited for."""
    future: Future[T] = Future()
    future.set_result(value)
    return future


class StepGate:
    """Holds an optimizer's steps back while the weights are read."""

    def __init__(self, optimizer: Any, background: Background[Any]) -> None:
        # An optimizer may outlive who publishes.
        process, known = Process(), weakref.ref(background)

        def before_step(*_: Any) -> None:
            reading = known()
            if reading is not None and not process.is_a_fork:
                reading.holding(reading.settle)

        self._handle = stepping_optimizer(optimizer).register_step_pre_hook(before_step)

    def remove(self) -> None:
        self._handle.remove()


class Changed:
    """Called once tensors were read: says which of them was written to since this was made, or None."""

    def __init__(self, tensors: Mapping[str, Any]) -> None:
        self._counts = [(name, tensor, _writes(tensor)) for name, tensor in tensors.items()]

    def __call__(self) -> str | None:
        for name, tensor, count in self._counts:
            if _writes(tensor) != count:
                return (
                    f"'{name}' was changed while it was read, so it was not published: call the ticket's wait_read() "
                    "before anything but the optimizer changes the weights, or publish with background=False"
                )
        return None


def _writes(tensor: Any) -> Any:
    """A number, or two of a sharded tensor: torch counts what is written to it and to what this rank holds apart."""
    if not is_torch_tensor(tensor) or tensor.is_inference():
        return None  # torch does not count
    local = getattr(tensor, "_local_tensor", None)
    return tensor._version if local is None else (tensor._version, local._version)


def stepping_optimizer(optimizer: Any) -> Any:
    """The one whose step changes the weights, inside what accelerate puts around it."""
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


def check_steps_all(model: Any, optimizer: Any) -> None:
    """Refuses an optimizer whose step is not all that changes the parameters of a module. Of a mapping it cannot be
    known."""
    stepped = {id(parameter) for group in stepping_optimizer(optimizer).param_groups for parameter in group["params"]}
    if not hasattr(model, "named_parameters"):
        return
    for name, parameter in unwrap(model).named_parameters():
        if parameter.requires_grad and id(parameter) not in stepped:
            raise InvalidArgumentError(
                f"'{name}' is trained, and not by this optimizer: publish without optimizer=, which waits until the "
                "weights have been read"
            )
