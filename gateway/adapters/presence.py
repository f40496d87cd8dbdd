"""Signs of life of work that others take over if its process dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import structlog

from gateway.db.pool import FAILURES

EVERY_S = 5.0

log = structlog.get_logger(__name__)


@asynccontextmanager
async def heartbeats(touch: Callable[[], Awaitable[object]]) -> AsyncIterator[None]:
    """Call touch every few seconds as long as the context lasts. A database that is away does not end the work."""

    async def beat() -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            try:
                await touch()
            except FAILURES as error:
                log.warning("no_sign_of_life", error=repr(error))

    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
