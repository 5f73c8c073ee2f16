"""The engine as the API server sees it: why it ended, and which of several workers' answers counts."""

from types import SimpleNamespace

import pytest
from weightwire.integrations.vllm import _engine as engine_module
from weightwire.integrations.vllm._engine import Engine, UpdateFailed
from weightwire.integrations.vllm._parameter_map import UpdateRefused, WeightsDiffer


class Client:
    errored = False

    def __init__(self):
        self.engine_core = SimpleNamespace()
        self.vllm_config = SimpleNamespace(model_config=SimpleNamespace(enable_sleep_mode=False))

    def shutdown(self, timeout=None):
        self.errored = True


def test_an_engine_that_was_told_to_end_has_not_died():
    client = Client()
    engine = Engine(client)
    client.shutdown(timeout=0)
    assert engine.is_dead and not engine.died_by_itself


def test_an_engine_that_vllm_cleans_up_after_has_died():
    client = Client()
    engine = Engine(client)
    client.errored = True
    client.shutdown(timeout=0)
    assert engine.died_by_itself


def test_the_worst_answer_of_the_workers_counts():
    ready, busy, failed, refused, differs = (
        {"state": state, "message": state} for state in ("ready", "busy", "failed", "refused", "differs")
    )
    for answers, error in (
        ([ready, failed, refused, differs], WeightsDiffer),
        ([failed, refused, ready], UpdateRefused),
        ([ready, failed], UpdateFailed),
        ([busy], UpdateFailed),
    ):
        with pytest.raises(error):
            engine_module._raise_if_wrong(answers)
    engine_module._raise_if_wrong([ready, busy], may_be_busy=True)
