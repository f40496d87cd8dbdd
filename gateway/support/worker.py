"""Work in the background that nothing ends but `stop`: what a step raises is logged, and the next one comes all the
same. Knows nothing of what the steps do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from adapters.errors import StoreFailure
from gateway.db.pool import FAILURES

AWAY: tuple[type[Exception], ...] = (*FAILURES, StoreFailure)
"""Errors that pass by themselves: a database, a disk or a bucket does not answer."""

log = structlog.get_logger(__name__)


async def forever(
    step: Callable[[], Awaitable[object]], interval_s: float, *, name: str, wake: asyncio.Event | None = None
) -> None:
    """Take a step, wait for interval_s or until `wake` is set, and so on until canceled. name: for the log."""
    wake = wake or asyncio.Event()
    while True:
        wake.clear()
        try:
            await step()
        except AWAY as error:
            log.warning("background_work_delayed", work=name, error=repr(error))
        except Exception:
            log.exception("background_work_failed", work=name)
        try:
            async with asyncio.timeout(interval_s):
                await wake.wait()
        except TimeoutError:
            continue
