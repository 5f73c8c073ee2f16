"""The demo's processes. None of them outlives it."""

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request

PR_SET_PDEATHSIG = 1
END_SECONDS = 10


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def get(url, timeout=5):
    """JSON, or None if nobody answers so."""
    try:
        with urllib.request.urlopen(url, timeout=timeout) as answer:
            return json.loads(answer.read() or b"{}")
    except (OSError, ValueError, urllib.error.URLError):
        return None


def _die_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Failed(Exception):
    pass


class Processes:
    """Starts processes, each in a session of its own, and ends all of them with its own block."""

    def __init__(self, folder):
        self._folder = folder
        self._running = {}

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for number in (signal.SIGINT, signal.SIGTERM):  # once is enough
            signal.signal(number, signal.SIG_IGN)
        for process in self._running.values():
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        deadline = time.monotonic() + END_SECONDS
        for process in self._running.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            # With it go the processes that it has started.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def log(self, name):
        return self._folder / f"{name.replace(' ', '-')}.log"

    def start(self, name, command, environment, take=None):
        """`take` gets each line of JSON that it prints; everything else goes to its log."""
        with self.log(name).open("ab") as log:
            process = subprocess.Popen(
                [str(word) for word in command],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log if take is None else subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        self._running[name] = process
        if take is not None:
            threading.Thread(target=self._read, args=(name, process, take), daemon=True).start()
        return process

    def _read(self, name, process, take):
        with self.log(name).open("ab") as log:
            for line in process.stdout:
                try:
                    said = json.loads(line)
                except ValueError:
                    log.write(line)
                    log.flush()
                    continue
                if isinstance(said, dict):
                    take(said)

    def kill(self, name):
        """Outright, with all that it has started. It may be started again."""
        process = self._running.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def has_ended(self, name):
        return self._running[name].poll() is not None

    def check(self):
        """Raises if one has ended that was to go on, or with an error."""
        for name, process in self._running.items():
            if process.poll() not in (None, 0):
                raise Failed(f"{name} ended with status {process.returncode}:\n{self.tail(name)}")

    def tail(self, name, characters=3000):
        text = self.log(name).read_text(errors="replace") if self.log(name).exists() else ""
        return text[-characters:]

    def finish(self, name):
        """Until it has ended well."""
        while not self.has_ended(name):
            self.check()
            time.sleep(0.1)
        self.check()

    def wait_until_up(self, name, url, seconds):
        deadline = time.monotonic() + seconds
        while get(url) is None:
            self.check()
            if self.has_ended(name) or time.monotonic() > deadline:
                raise Failed(f"{name} does not answer:\n{self.tail(name)}")
            time.sleep(0.2)
