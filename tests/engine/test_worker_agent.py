"""What a worker does when it is put to sleep while a task reads its weights. Sleeping takes a GPU; the order of things
does not, so the worker here is one that only notes what happens to it."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from weightwire.integrations.vllm._worker_agent import WorkerAgent


class NotingWorker:
    device = None

    def __init__(self) -> None:
        self.happened: list[str] = []

    def sleep(self, level: int = 1) -> None:
        self.happened.append(f"sleep {level}")

    def wake_up(self, tags: list[str] | None = None) -> None:
        self.happened.append(f"wake up {tags}")


class SlowParameterMap:
    """Reads until it is let go."""

    def __init__(self, happened: list[str]) -> None:
        self._happened = happened
        self.reading = threading.Event()
        self.let_go = threading.Event()

    def check_can_change(self, tensors: list[str]) -> None:
        self.reading.set()
        assert self.let_go.wait(60)
        self._happened.append("read")


@pytest.fixture
def agent() -> Any:
    worker = NotingWorker()
    agent: Any = WorkerAgent(worker)
    agent.worker, agent._parameters = worker, SlowParameterMap(worker.happened)
    return agent


def test_an_engine_does_not_sleep_before_its_weights_have_been_read(agent: Any) -> None:
    assert agent.start_task("check_can_change", {"tensors": ["x"]})["state"] == "busy"
    assert agent._parameters.reading.wait(60)
    # The reading ends only once it is waited for.
    join = agent._thread.join

    def let_go_and_join() -> None:
        agent._parameters.let_go.set()
        join()

    agent._thread.join = let_go_and_join
    agent.worker.sleep(2)
    assert agent.worker.happened == ["read", "sleep 2"]


def test_nothing_is_read_while_an_engine_sleeps(agent: Any) -> None:
    agent._parameters.let_go.set()
    agent.worker.sleep(level=1)
    assert "sleeps" in agent.start_task("check_can_change", {"tensors": ["x"]})["message"]
    agent.worker.wake_up(["kv_cache"])
    assert agent.start_task("check_can_change", {"tensors": ["x"]})["state"] == "failed"
    agent.worker.wake_up(tags=["weights"])
    assert agent.start_task("check_can_change", {"tensors": ["x"]})["state"] in ("busy", "ready")


def test_an_update_prepared_before_a_sleep_is_not_committed_after_it(agent: Any) -> None:
    agent._prepared = object()
    agent.worker.sleep()
    agent.worker.wake_up()
    assert "was not prepared" in agent.commit(1, "")["message"]
