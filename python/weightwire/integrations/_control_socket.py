"""Forwards requests for the routes from other processes of a server to the process that follows.

A server with several API processes has one that follows. The others send it what they were asked through a Unix socket
in a directory that only its user can open. One connection carries one request and its answer, each as JSON up to the
end of the stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable

from weightwire import _policy
from weightwire.errors import UnavailableError
from weightwire.integrations._routes import Answer, error_answer

_MOST_BYTES = 1 << 20


class ControlSocket:
    """Answers the requests. Belongs to one event loop."""

    def __init__(self, handle: Callable[[str, bytes], Answer]) -> None:
        """`handle` answers a path and a body."""
        self._handle = handle
        self._folder: str | None = None
        self._server: asyncio.Server | None = None

    async def open(self) -> str:
        """Returns the socket's path."""
        self._folder = tempfile.mkdtemp(prefix="weightwire-control-")
        path = os.path.join(self._folder, "control.sock")
        self._server = await asyncio.start_unix_server(self._serve, path)
        return path

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._server = self._folder = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            request = json.loads(await _read_all(reader))
            answer = self._handle(request["path"], request["body"].encode())
            writer.write(json.dumps(answer).encode())
            await writer.drain()
        writer.close()


async def forward(socket: str, path: str, body: bytes) -> Answer:
    """Has the process that follows answer. Never raises an `Exception`."""
    request = json.dumps({"path": path, "body": body.decode(errors="replace")})
    try:
        return Answer(*json.loads(await asyncio.wait_for(_exchange(socket, request.encode()), _policy.ANSWER_SECONDS)))
    except (OSError, ValueError, TypeError, asyncio.TimeoutError) as error:
        what = str(error) or type(error).__name__
        return error_answer(UnavailableError(f"the API process that follows does not answer ({what}); try again"))


async def _exchange(socket: str, request: bytes) -> bytes:
    reader, writer = await asyncio.open_unix_connection(socket)
    try:
        writer.write(request)
        writer.write_eof()
        return await _read_all(reader)
    finally:
        writer.close()


async def _read_all(reader: asyncio.StreamReader) -> bytes:
    data = await reader.read(_MOST_BYTES)
    while more := await reader.read(_MOST_BYTES):
        data += more
        if len(data) > 16 * _MOST_BYTES:
            raise ValueError("it is too long")
    return data
