"""Run a server with all hostile behaviours until standard input closes, and say where it listens."""

from __future__ import annotations

import asyncio
import sys

from tests.faults.foreign.behaviours import behave
from tests.gateway.backends.foreign.fake import fake_server


async def main() -> None:
    async with fake_server() as server:
        server.answer = behave
        print(server.port, flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
