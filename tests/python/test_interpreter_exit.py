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
held = ww.load(run)
followers = [ww.Follower(run, {name: array.copy() for name, array in held.items()}, lease=False) for _ in range(6)]
mine = threading.local()
def poll():
    if not hasattr(mine, "follower"):
        mine.follower = followers.pop()
    mine.follower.poll()
repeat(poll)
"""

PUBLISHING = """
weights = {"w": np.zeros((64, 64), np.float32)}
publishers = [ww.Publisher(f"{run}-{number}", weights, threads=2, exit_timeout=0.01) for number in range(6)]
mine = threading.local()
def publish():
    if not hasattr(mine, "publisher"):
        mine.publisher = publishers.pop()
    mine.publisher.publish(background=True).wait_read()
repeat(publish)
"""


@pytest.mark.parametrize("work", [LOADING, WAITING, PUBLISHING], ids=["load", "follow", "publish"])
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
