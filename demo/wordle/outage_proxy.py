"""A proxy before a bucket's service. While a file exists it cuts all connections, as if the bucket failed.

python -m wordle.outage_proxy --port N --to HOST:PORT --while FILE
"""

import argparse
import asyncio
import contextlib
import os

BLOCK_BYTES = 1 << 16
CHECK_SECONDS = 0.05


async def copy(reader, writer):
    try:
        while block := await reader.read(BLOCK_BYTES):
            writer.write(block)
            await writer.drain()
    finally:
        writer.close()


async def serve(port, host, to_port, outage_file):
    open_connections = set()

    async def connected(reader, writer):
        if os.path.exists(outage_file):
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
            if os.path.exists(outage_file):
                for writer in open_connections:
                    writer.transport.abort()
            await asyncio.sleep(CHECK_SECONDS)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--to", required=True)
    parser.add_argument("--while", required=True, dest="outage_file")
    arguments = parser.parse_args()
    host, _, to_port = arguments.to.partition(":")
    asyncio.run(serve(arguments.port, host, int(to_port), arguments.outage_file))


if __name__ == "__main__":
    main()
