# SPDX-License-Identifier: Apache-2.0
"""A TCP proxy on loopback, which ends with its process.

usage: link.py PORT TARGET_PORT
"""

import asyncio
import contextlib
import sys


async def forward(reader, writer):
    """Until `reader` ends or either connection fails."""
    with contextlib.suppress(OSError), contextlib.closing(writer):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()


async def main(port, target):
    async def serve(reader, writer):
        try:
            there = await asyncio.open_connection("127.0.0.1", target)
        except OSError:
            writer.close()
            return
        await asyncio.gather(forward(reader, there[1]), forward(there[0], writer))

    server = await asyncio.start_server(serve, "127.0.0.1", port)
    print("listening", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:])))
