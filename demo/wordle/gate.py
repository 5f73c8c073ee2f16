"""Stands before a bucket's service and lets nobody through while a file is there: a bucket that fails for a while.

python -m wordle.gate --port N --to HOST:PORT --closed FILE
"""

import argparse
import asyncio
import contextlib
import os

PIECE = 1 << 16
LOOK_SECONDS = 0.05


async def copy(reader, writer):
    try:
        while piece := await reader.read(PIECE):
            writer.write(piece)
            await writer.drain()
    finally:
        writer.close()


async def serve(port, host, to_port, closed):
    open_connections = set()

    async def connected(reader, writer):
        if os.path.exists(closed):
            writer.transport.abort()
            return
        open_connections.add(writer)
        with contextlib.suppress(OSError):
            to_reader, to_writer = await asyncio.open_connection(host, to_port)
            await asyncio.gather(copy(reader, to_writer), copy(to_reader, writer), return_exceptions=True)
        open_connections.discard(writer)
        writer.close()

    async with await asyncio.start_server(connected, "127.0.0.1", port):
        while True:
            if os.path.exists(closed):
                for writer in open_connections:
                    writer.transport.abort()
            await asyncio.sleep(LOOK_SECONDS)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--to", required=True)
    parser.add_argument("--closed", required=True)
    arguments = parser.parse_args()
    host, _, to_port = arguments.to.partition(":")
    asyncio.run(serve(arguments.port, host, int(to_port), arguments.closed))


if __name__ == "__main__":
    main()
