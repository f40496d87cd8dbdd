"""A reply that is recorded while it is sent, at any pace, to a client that may have left.

Knows nothing of idempotency keys.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from litestar.response.base import ASGIResponse
from litestar.types import Message, Receive, ReceiveMessage, Scope, Send

from gateway.content.idempotency import Execution, Reply
from gateway.domain.experiments.exposure import HEADER
from gateway.http.request.call import Call, call_of
from gateway.openai.shared.context import ADAPTER_HEADER
from gateway.pipeline.routes.routed import ATTEMPTS_HEADER, ROUTE_HEADER, TARGET_HEADER

REPLAYED_HEADERS = frozenset((ADAPTER_HEADER, HEADER, ROUTE_HEADER, TARGET_HEADER, ATTEMPTS_HEADER))
"""The headers of the first reply that a replay repeats: those that name the reply's source."""


async def never_disconnected() -> ReceiveMessage:
    """Wait forever: a client that leaves does not end the work of a recorded request."""
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


class RecordedReply(ASGIResponse):
    """A reply that is recorded while it is sent.

    The last message is held back until the reply is stored, or for a moment at most: a client that has seen the end can
    then ask for the reply again. As long as the whole reply is recorded, the work goes on at its own pace even if the
    client reads slowly. If a reply is too large to be recorded, each of its messages waits until the client takes it.
    """

    def __init__(self, response: ASGIResponse, execution: Execution) -> None:
        super().__init__()
        self._response = response
        self._execution = execution
        self._status = 200
        self._headers: list[tuple[str, str]] = []
        self._parts: list[bytes] | None = []  # None: too large to be kept

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the reply, and record each message before it goes out, also after the client has left."""
        call = call_of(scope)
        outgoing: asyncio.Queue[Message] = asyncio.Queue()

        async def record(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._record_head(message["status"], message["headers"], call)
            elif message["type"] == "http.response.body":
                self._add(message["body"])
                if not message.get("more_body", False):
                    await self._execution.finish(self._recorded_reply())
            outgoing.put_nowait(message)
            if self._parts is None:
                await outgoing.join()
                self._execution.release()

        sending = asyncio.create_task(_send_all(outgoing, send, call))
        try:
            await self._response(scope, never_disconnected, record)
            await sending
        finally:
            self._execution.abandon()  # unless it was finished
            sending.cancel()
            self._execution.release()

    def _record_head(self, status: int, headers: Iterable[tuple[bytes, bytes]], call: Call) -> None:
        self._status = status
        of_reply = ((name.decode("latin-1"), value.decode("latin-1")) for name, value in headers)
        self._headers = [header for header in of_reply if header[0] != "content-length"]
        self._headers += [header for header in call.headers if header[0] in REPLAYED_HEADERS]

    def _add(self, data: bytes) -> None:
        if self._parts is not None:
            if self._execution.hold(len(data)):
                self._parts.append(data)
            else:
                self._parts = None

    def _recorded_reply(self) -> Reply | None:
        return None if self._parts is None else Reply(self._status, tuple(self._headers), b"".join(self._parts))


async def _send_all(outgoing: asyncio.Queue[Message], send: Send, call: Call) -> None:
    """Send the messages of a reply in order until the last one. Once the client has left, they are discarded."""
    is_over = False
    while not is_over:
        message = await outgoing.get()
        is_over = message["type"] == "http.response.body" and not message.get("more_body", False)
        try:
            await send(message)
        except OSError:
            call.client_gone = True
        outgoing.task_done()
