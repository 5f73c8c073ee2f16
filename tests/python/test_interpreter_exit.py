"""A program may end while its threads are inside weightwire. Python before 3.14 ends such threads by pthread_exit,
which must not abort the process."""

import subprocess
import sys

import pytest
import weightwire as ww
from conftest import small_state

DAEMONS = """
import sys, threading
import numpy as np
import weightwire as ww

run, started = sys.argv[1], threading.Semaphore(0)

def repeat(work):
    def loop():
        while True:
            work()
            started.release()
    for _ in range(6):
        threading.Thread(target=loop, daemon=True).start()
    for _ in range(12):
        assert started.acquire(timeout=60)
"""

LOADING = "repeat(lambda: ww.load(run, threads=2))"

WAITING = """
def wait():
    follower = ww.Follower(run, {name: np.zeros_like(array) for name, array in ww.load(run).items()})
    follower.poll()
    follower.close()
repeat(wait)
"""

# The core calls Python for weights that are rounded on their way, from threads of its own.
READING = """
import torch
weights = {"w": torch.zeros(64, 64).t()[1:]}
numbers = iter(range(10**6))
def publish():
    publisher = ww.Publisher(f"{run}-{next(numbers)}", weights, dtype=torch.bfloat16, threads=2)
    publisher.publish(0, background=True)
    weights["w"] = weights["w"] + 1
repeat(publish)
"""


@pytest.mark.parametrize("work", [LOADING, WAITING, READING], ids=["load", "follow", "publish"])
def test_a_program_ends_while_daemon_threads_are_at_work(tmp_path, work):
    with ww.Publisher(tmp_path / "run", small_state()) as publisher:
        publisher.publish(0)
    for _ in range(3):
        ended = subprocess.run(
            [sys.executable, "-c", DAEMONS + work, str(tmp_path / "run")], capture_output=True, text=True, timeout=120
        )
        # Publishers that were not closed are named, and a follower's threads may see others end.
        assert ended.returncode == 0, ended.stderr
        assert "terminate" not in ended.stderr
