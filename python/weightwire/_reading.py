"""Reading the weights while their owner goes on. Who changes them must wait until they have been read: an optimizer
does so by itself, and what changes them all the same is found out by torch's count of writes."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from typing import Any, Generic, TypeVar

from weightwire._arrays import is_torch_tensor
from weightwire._forks import Process
from weightwire._state import unwrap
from weightwire.errors import InvalidArgumentError

T = TypeVar("T")


def done(value: T) -> Future[T]:
    """What was read already."""
    future: Future[T] = Future()
    future.set_result(value)
    return future


class Background(Generic[T]):
    """A thread that reads, for one publish at a time."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._future: Future[T] | None = None

    def start(self, read: Callable[[], T]) -> Future[T]:
        """REQUIRES: the one before was settled."""
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()

        def run() -> None:
            try:
                future.set_result(read())
            except BaseException as error:  # whoever waits is to see it
                future.set_exception(error)

        # A daemon: at the end of the interpreter, who owns it stops what it waits for, and then joins it.
        thread = threading.Thread(target=run, name="weightwire-read", daemon=True)
        self._thread, self._future = thread, future
        thread.start()
        return future

    def settle(self, timeout: float | None = None) -> bool:
        """Until nothing is being read; false when the time is up before. Raises what went wrong with it, once."""
        future = self._future
        if future is None:
            return True
        if not wait([future], timeout).done:
            return False
        self._future = None
        self.join()
        future.result()
        return True

    def join(self) -> None:
        """Until the thread has ended, however it did."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()


class Held:
    """Holds an optimizer's steps back while the weights are read."""

    def __init__(self, optimizer: Any, settle: weakref.WeakMethod[Callable[[], None]]) -> None:
        self._process = Process()
        self._settle = settle
        self._handle = stepping_optimizer(optimizer).register_step_pre_hook(self._before_step)

    def _before_step(self, *_: Any) -> None:
        settle = self._settle()
        if settle is not None and not self._process.is_a_fork:
            settle()

    def release(self) -> None:
        self._handle.remove()


class Changed:
    """Called once tensors were read: says which of them was written to since this was made, or None."""

    def __init__(self, tensors: Mapping[str, Any]) -> None:
        self._counts = [(name, tensor, _writes(tensor)) for name, tensor in tensors.items()]

    def __call__(self) -> str | None:
        for name, tensor, count in self._counts:
            if _writes(tensor) != count:
                return (
                    f"'{name}' was changed while it was read, so it was not published: call the ticket's "
                    "wait_read() before anything but the optimizer changes the weights"
                )
        return None


def _writes(tensor: Any) -> int | None:
    if not is_torch_tensor(tensor) or tensor.is_inference():
        return None  # torch does not count
    return int(tensor._version)


def stepping_optimizer(optimizer: Any) -> Any:
    """The one whose step changes the weights, inside what accelerate puts around it."""
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    if not hasattr(optimizer, "register_step_pre_hook"):
        raise InvalidArgumentError(f"optimizer= takes an optimizer of torch, not a {type(optimizer).__name__}")
    return optimizer


def not_stepped(model: Any, optimizer: Any) -> str | None:
    """The first trained parameter of a module that is changed by something else than the optimizer's step; None if
    there is none. Of a mapping it cannot be known."""
    if not hasattr(model, "named_parameters"):
        return None
    stepped = {id(parameter) for group in stepping_optimizer(optimizer).param_groups for parameter in group["params"]}
    for name, parameter in unwrap(model).named_parameters():
        if parameter.requires_grad and id(parameter) not in stepped:
            return str(name)
    return None


def optimizer_of_all(model: Any, optimizer: Any) -> Any:
    """The optimizer if its step is all that changes the model's parameters, else None."""
    try:
        return None if optimizer is None or not_stepped(model, optimizer) is not None else optimizer
    except InvalidArgumentError:
        return None
