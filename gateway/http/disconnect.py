"""A client that goes away ends the work that was done for it.

ASGI reports the end in a message, which a task of its own would have to wait for during the whole of a request. The
connection knows it as well, and at once: it tells the request's `Call`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from gateway.domain.errors import ClientGone
from gateway.http.request.call import Call

T = TypeVar("T")


async def unless_disconnected(call: Call, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of work.

    Once the client has disconnected, work is cancelled and awaited, unless it outlives its client.

    Raises ClientGone: when the client has disconnected.
    """
    if call.outlives_client:
        return await work
    if call.client_gone:
        work.close()
        raise ClientGone("The client disconnected.")
    working = asyncio.current_task()
    assert working is not None
    is_gone = False

    def end() -> None:
        nonlocal is_gone
        is_gone = True
        working.cancel()

    call.on_disconnect = end
    try:
        return await work
    except asyncio.CancelledError:
        # Where another cancellation came with this one, the other one counts.
        if is_gone and working.uncancel() == 0:
            raise ClientGone("The client disconnected.") from None
        raise
    finally:
        call.on_disconnect = None
