"""Signs of life of background work, by whose absence other processes take the work over."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import structlog

from gateway.support.worker import Worker

EVERY_S = 5.0

log = structlog.get_logger(__name__)


@asynccontextmanager
async def keep_alive(touch: Callable[[], Awaitable[object]]) -> AsyncIterator[None]:
    """Call `touch` every few seconds as long as the context lasts. A database that is away does not end the work."""
    beating = Worker(touch, EVERY_S, name="sign of life", rests_first=True)
    beating.start()
    try:
        yield
    finally:
        await beating.stop()
