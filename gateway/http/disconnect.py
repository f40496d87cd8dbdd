"""A client that goes away ends the work that was done for it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from litestar.types import Receive

from gateway.domain.errors import ClientGone

T = TypeVar("T")


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of work. Once the client has disconnected, work is cancelled, awaited, and ClientGone raised.

    The body of the request must have been read: from then on `receive` has nothing to say but that.
    """
    working = asyncio.current_task()
    assert working is not None
    gone = False

    async def watch() -> None:
        nonlocal gone
        while (await receive())["type"] != "http.disconnect":
            pass
        gone = True
        working.cancel()

    watching = asyncio.create_task(watch())
    try:
        return await work
    except asyncio.CancelledError:
        # Of this cancellation and another one that came with it, the other one counts.
        if gone and working.uncancel() == 0:
            raise ClientGone("The client disconnected.") from None
        raise
    finally:
        watching.cancel()
