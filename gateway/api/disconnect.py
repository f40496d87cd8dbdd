"""A client that goes away ends the work that was done for it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from litestar.types import Receive

from gateway.errors import GatewayError

T = TypeVar("T")


class ClientGone(GatewayError):
    """Nobody reads the answer any more; the status, nginx's, is for the log alone."""

    status = 499
    code = "client_disconnected"


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of work. Once the client has disconnected, work is cancelled, awaited, and ClientGone raised.

    The body of the request must have been read: from then on `receive` has nothing to say but that.
    """
    working = asyncio.create_task(work)
    watching = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGone("The client disconnected.")
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
