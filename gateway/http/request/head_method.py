"""HEAD: every route that answers GET answers HEAD, with the same permissions, limits and headers (RFC 9110, 9.3.2).

The server leaves the body out. Knows no route.
"""

from __future__ import annotations

import asyncio

from litestar.types import HTTPScope, Message, Send


def as_get(scope: HTTPScope) -> HTTPScope:
    """Return the scope of a HEAD request as that of a GET request, which a handler is asked for."""
    return {**scope, "method": "GET"}


class HeadReply:
    """The reply to a HEAD request. A handler of a stream is cancelled after the first piece."""

    def __init__(self, send: Send) -> None:
        """Make the reply. To be called by the request's task, which is cancelled where more of a body would follow."""
        self.is_over = False
        """True once the reply is sent."""
        self.is_cut = False
        """True if the request's task was cancelled."""
        self._send = send
        self._task = asyncio.current_task()

    async def send(self, message: Message) -> None:
        """Send the head of the reply, and an empty body once the handler has the beginning of one."""
        if self.is_over:
            return
        if message["type"] != "http.response.body":
            await self._send(message)
            return
        self.is_over = True
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})
        if message.get("more_body", False):
            assert self._task is not None
            self.is_cut = True
            self._task.cancel()
            await asyncio.sleep(0)  # where a handler sends as the request's task, it ends here


def with_head(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the headers of a reply whose `allow` names HEAD where it names GET."""
    return [
        (name, value + b", HEAD" if name.lower() == b"allow" and b"GET" in value.split(b", ") else value)
        for name, value in headers
    ]
