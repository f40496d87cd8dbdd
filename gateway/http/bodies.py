"""The JSON bodies of requests for a project's work, at a pace.

Reading and tokenizing a body costs a gateway work, also where the request is refused afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from litestar import Request
from litestar.types import HTTPScope

from gateway.http.caller import Caller
from gateway.http.fields import decode
from gateway.http.json_work import MAX_WORK, UNCOUNTED_BYTES, work_of
from gateway.http.request.call import call_of
from gateway.support.pace import Pace

T = TypeVar("T")

BODY_BYTES_PER_S = 4 << 20
"""The bytes of request bodies that one project may send to one gateway per second: about a million tokens."""

BURST_BYTES = 16 << 20

BYTES_PER_WORK = 24
"""The bytes of a body that count as much as a unit of decoding work.

The most expensive body counts as 9 MiB of text. Nothing else goes on in a gateway for the 20 ms that its decoding
takes, and a project that sends such bodies causes that for less than a hundredth of the time: the slowest of a hundred
gaps between the texts of a stream is not slower beside it.
"""

LIGHT_BYTES = 16 << 10
"""The size in bytes up to which the decoding work of a body is not counted: a request itself costs as much."""


class Bodies:
    """The reader of request bodies, with the pace of each project, in one gateway process."""

    def __init__(self) -> None:
        self._pace = Pace(BODY_BYTES_PER_S, BURST_BYTES, what="large requests")

    async def read(self, request: Request[Any, Any, Any], caller: Caller) -> bytes:
        """Return the body of a request, not decoded yet. A body that is read again counts once.

        The pace counts the length that a request's head announces, so that a refused body is not read. The bytes of a
        body in chunks, which announces no length, count as they come; reading stops at the first that is too many. A
        body that takes more work than its length suggests counts for more bytes once it is read: the next requests wait
        for them.

        Raises LimitReached: when the project sends more bytes than its pace allows.
        """
        call = call_of(request.scope)
        if call.is_body_counted:
            return await request.body()
        call.is_body_counted = True
        most = request.route_handler.resolve_request_max_body_size()
        announced = announced_bytes(request.scope, most)
        if announced is not None:
            self._pace.take(caller.project_id, announced)
        else:
            count_body_bytes(request, self._pace.in_parts(caller.project_id, most or 0))
        body = await request.body()
        if further := _further_bytes(body):
            self._pace.charge(caller.project_id, further)
        return body

    def charge(self, caller: Caller, num_bytes: int) -> None:
        """Count bytes that were read elsewhere for a request against the pace, as if its client had sent them."""
        self._pace.charge(caller.project_id, num_bytes)


def _further_bytes(body: bytes) -> int:
    """Return the bytes that a body counts for besides its length, because of the work of decoding it."""
    most = BYTES_PER_WORK * MAX_WORK  # a body of more work is refused before it is decoded
    if not LIGHT_BYTES < len(body) < most:
        return 0
    return max(0, min(most, BYTES_PER_WORK * work_of(body, enough=len(body) // BYTES_PER_WORK)) - len(body))


def count_body_bytes(request: Request[Any, Any, Any], count: Callable[[int], None]) -> None:
    """Have the bytes of a request's body counted as they come.

    count: called with the number of bytes of each message; an error that it raises ends the reading.
    """
    receive = request.receive

    async def counted() -> Any:
        message = await receive()
        if num_bytes := len(message.get("body", b"")):  # type: ignore[arg-type]
            count(num_bytes)
        return message

    request.receive = counted


def announced_bytes(scope: HTTPScope, most: int | None) -> int | None:
    """Return the length of a body that a request's head announces; None where it announces none, or more than most."""
    for name, value in scope["headers"]:  # `request.headers` would be a copy of them all
        if name == b"content-length" and value.isdigit() and (not isinstance(most, int) or int(value) <= most):
            return int(value)
    return None


async def decoded(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """Decode a body.

    After a large body, let other tasks go on before the caller checks the fields, which takes time too.

    Raises as `decode`.
    """
    found = decode(decoder, body)
    if len(body) > UNCOUNTED_BYTES:
        await asyncio.sleep(0)
    return found
