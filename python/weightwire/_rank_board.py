"""The board through which ranks talk after they have made their publishers: a TCPStore of their own, in rank 0, and a
thread in each rank that moves messages between it and the core."""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Callable
from typing import Any

from weightwire import _core, _policy
from weightwire.errors import WeightwireError

_CHANGES = "changes"  # the key that counts how often something was put on the board


def serve_board(timeout: float) -> Any:
    """Starts the board in this process, on any free port."""
    import torch.distributed as dist

    seconds = datetime.timedelta(seconds=timeout)
    return dist.TCPStore("0.0.0.0", 0, is_master=True, wait_for_workers=False, timeout=seconds)


def connect_board(host: str, port: int, timeout: float, connect_seconds: float = _policy.CONNECT_SECONDS) -> Any:
    """Connects to rank 0's board. Raises what torch raises after `connect_seconds`."""
    import torch.distributed as dist

    seconds = datetime.timedelta(seconds=connect_seconds)
    store = dist.TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=seconds)
    store.set_timeout(datetime.timedelta(seconds=timeout))
    return store


class BoardPump:
    """Moves messages between the core and the board, on a thread of its own. It replaces a broken connection by calling
    `connect`: messages that were sent are still on the board, and the others are sent then."""

    def __init__(self, core: _core.RankPublisher, store: Any, rank: int, connect: Callable[[], Any]) -> None:
        self._core = core
        self._store = store
        self._server = store if rank == 0 else None  # the board lives as long as rank 0's pump
        self._rank = rank
        self._connect = connect
        self._last_sent = time.monotonic()
        self._changes = -1
        self._absent: set[str] = set()  # keys that were not on the board at this count of changes
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="weightwire-ranks", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=_policy.STOP_BOARD_SECONDS)

    def _run(self) -> None:
        try:
            self._pump()
        except WeightwireError:
            if not self._stop.is_set():  # after stop() the core may be closed
                raise

    def _pump(self) -> None:
        backoff = _core.Backoff(_policy.FIRST_BOARD_SECONDS, _policy.LAST_BOARD_SECONDS)
        pause = backoff.next()
        while not self._stop.is_set():
            outgoing, wanted, unneeded = self._core.board_work(pause)
            try:
                delivered = self._exchange(outgoing, wanted, unneeded)
            except Exception as error:  # whatever torch raises
                self._reconnect(error)
                continue
            self._core.board_done()
            if delivered or outgoing:
                backoff.reset()
            pause = backoff.next() if wanted or delivered or outgoing else _policy.IDLE_BOARD_SECONDS

    def _reconnect(self, error: Exception) -> None:
        """Tries until the board answers. If the first attempt fails, the board is gone, and rank 0 with it."""
        reported = False
        backoff = _core.Backoff(_policy.FIRST_CONNECT_PAUSE_SECONDS, _policy.LAST_CONNECT_PAUSE_SECONDS)
        while not self._stop.is_set():
            try:
                self._store = self._connect()
            except Exception:
                if not reported:
                    self._core.set_disconnected(f"rank {self._rank} cannot reach rank 0 any more ({first_line(error)})")
                reported = True
                self._stop.wait(backoff.next())
                continue
            if reported:
                self._core.set_connected()
            return

    def _exchange(self, outgoing: list[tuple[str, str]], wanted: list[str], unneeded: list[str]) -> bool:
        """Puts, gets and deletes messages. Returns whether one was delivered to the core."""
        if outgoing or wanted or unneeded:
            self._last_sent = time.monotonic()
        elif time.monotonic() - self._last_sent > _policy.LONGEST_SILENCE_SECONDS:
            self._last_sent = time.monotonic()
            self._store.add(_CHANGES, 0)
        for key, text in outgoing:
            self._store.set(key, text)
        if outgoing:
            self._store.add(_CHANGES, 1)
        delivered = False
        # One request is enough while nothing is put, because rank 0 waits for keys of all ranks.
        changes = self._store.add(_CHANGES, 0) if wanted else self._changes
        if changes != self._changes:
            self._changes, self._absent = changes, set()
        for key in wanted:
            if key in self._absent:
                continue
            if self._store.check([key]):
                self._core.deliver(key, self._store.get(key).decode())
                delivered = True
            else:
                self._absent.add(key)
        for key in unneeded:
            self._store.delete_key(key)
        return delivered


def first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
