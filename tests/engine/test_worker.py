"""What a worker does when it is put to sleep while a task reads its weights. Sleeping takes a GPU; the order of things
does not, so the worker here is one that only notes what happens to it."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from weightwire.integrations.vllm.worker import WorkerSide


class NotingWorker:
    device = None

    def __init__(self) -> None:
        self.happened: list[str] = []

    def sleep(self, level: int = 1) -> None:
        self.happened.append(f"sleep {level}")

    def wake_up(self, tags: list[str] | None = None) -> None:
        self.happened.append(f"wake up {tags}")


class SlowHolding:
    """Reads until it is let go."""

    def __init__(self, happened: list[str]) -> None:
        self._happened = happened
        self.reading = threading.Event()
        self.let_go = threading.Event()

    def may_change(self, tensors: list[str]) -> None:
        self.reading.set()
        assert self.let_go.wait(60)
        self._happened.append("read")


@pytest.fixture
def side() -> Any:
    worker = NotingWorker()
    side: Any = WorkerSide(worker)
    side.worker, side._holding = worker, SlowHolding(worker.happened)
    return side


def test_an_engine_does_not_sleep_before_its_weights_have_been_read(side: Any) -> None:
    assert side.begin("may_change", {"tensors": ["x"]})["state"] == "busy"
    assert side._holding.reading.wait(60)
    # The reading ends only once it is waited for.
    join = side._thread.join

    def let_go_and_join() -> None:
        side._holding.let_go.set()
        join()

    side._thread.join = let_go_and_join
    side.worker.sleep(2)
    assert side.worker.happened == ["read", "sleep 2"]


def test_nothing_is_read_while_an_engine_sleeps(side: Any) -> None:
    side._holding.let_go.set()
    side.worker.sleep(level=1)
    assert "sleeps" in side.begin("may_change", {"tensors": ["x"]})["message"]
    side.worker.wake_up(["kv_cache"])
    assert side.begin("may_change", {"tensors": ["x"]})["state"] == "failed"
    side.worker.wake_up(tags=["weights"])
    assert side.begin("may_change", {"tensors": ["x"]})["state"] in ("busy", "ready")


def test_what_was_prepared_before_a_sleep_is_not_committed_after_it(side: Any) -> None:
    side._prepared = object()
    side.worker.sleep()
    side.worker.wake_up()
    assert "was not prepared" in side.commit(1, "")["message"]
