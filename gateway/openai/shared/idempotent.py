"""Idempotency-Key: a route that declares itself `@idempotent` runs once per key, and answers the same bytes again.

A request without the header is handled as usual. A request with the header is worked on to its end even if its client
leaves, so that a retry gets the whole reply. The reply to a request that was refused before an engine worked on it is
not kept. Knows headers and bodies; `gateway.content.idempotency` decides which request runs.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable
from functools import wraps
from typing import Any

import msgspec
from litestar import Request
from litestar.response.base import ASGIResponse

from gateway.content.idempotency import Execution, Idempotency, Reply
from gateway.content.refusals import PARAM
from gateway.db.content.idempotency import Slot
from gateway.domain.errors import GatewayError, InvalidRequest, Overloaded, ShuttingDown
from gateway.http.bodies import Bodies
from gateway.http.caller import Caller
from gateway.http.error_body import unexpected_error
from gateway.http.request.call import Call, call_of
from gateway.openai.shared.recorded import RecordedReply

HEADER = b"idempotency-key"
MAX_KEY_CHARS = 255
REPLAYED = ("idempotent-replayed", "true")
ORIGINAL_ID = "x-lorikeet-original-request-id"
"""The header of a replay that names the x-request-id of the reply which it repeats."""

_MAY_NOT_RETRY = ("x-should-retry", "false")

Handler = Callable[[Request[Any, Any, Any], Caller], Awaitable[ASGIResponse]]


def idempotent(replies: Idempotency, bodies: Bodies) -> Callable[[Handler], Handler]:
    """Return a decorator for a route's handler that runs the handler at most once per Idempotency-Key."""

    def declared(handler: Handler) -> Handler:
        @wraps(handler)
        async def handle(request: Request[Any, Any, Any], caller: Caller) -> ASGIResponse:
            key = idempotency_key(request.scope["headers"])
            if key is None:
                return await handler(request, caller)
            body = await bodies.read(request, caller)
            return await _run_once(replies, handler, request, caller, key, body)

        return handle

    return declared


def idempotency_key(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """Return the key that the client sent, if any. Raises InvalidRequest: for a malformed key."""
    key: bytes | None = None
    for name, value in headers:
        if name == HEADER:
            if key is not None:
                raise InvalidRequest(
                    f"The header {PARAM} was sent twice; send it once.", param=PARAM, code="invalid_value"
                )
            key = value
    if key is not None and not (0 < len(key) <= MAX_KEY_CHARS and all(0x20 <= byte < 0x7F for byte in key)):
        raise InvalidRequest(
            f"The header {PARAM} must have 1 to {MAX_KEY_CHARS} printable ASCII characters.",
            param=PARAM,
            code="invalid_value",
        )
    return key


async def _run_once(
    replies: Idempotency, handler: Handler, request: Request[Any, Any, Any], caller: Caller, key: bytes, body: bytes
) -> ASGIResponse:
    call = call_of(request.scope)
    slot = Slot(caller.project_id, hashlib.sha256(key).digest())
    fingerprint = _fingerprint(request, body, caller)
    begun = await replies.begin(slot, fingerprint, call.request_id, num_bytes=len(body))
    if isinstance(begun, Reply):
        call.headers = (REPLAYED, (ORIGINAL_ID, begun.request_id))
        return ASGIResponse(body=begun.body, headers=begun.headers, status_code=begun.status)
    call.outlives_client = True
    try:
        return RecordedReply(await handler(request, caller), begun)
    except asyncio.CancelledError:
        begun.abandon()
        raise
    except Exception as error:
        await _failed(begun, call, error)
        raise


def _fingerprint(request: Request[Any, Any, Any], body: bytes, caller: Caller) -> bytes:
    """Return the SHA-256 of the facts that make two requests the same one: method, path, body and API key.

    The API key counts since one key may call and read models that another may not.
    """
    parts = (request.method, request.scope["path"], body, caller.api_key_id)
    return hashlib.sha256(msgspec.msgpack.encode(parts)).digest()


async def _failed(execution: Execution, call: Call, error: Exception) -> None:
    """Record that an execution failed.

    The execution is free for another try if nothing was admitted, or the engine refused the only prompt. If there are
    several prompts, others may have been worked on.
    """
    refused = call.num_admitted == 1 and isinstance(error, InvalidRequest | Overloaded)
    if call.num_admitted == 0 or refused:
        await execution.free()
        return
    if isinstance(error, ShuttingDown):
        error.retry_after_s = None  # with this key it would only come again
    shown = error if isinstance(error, GatewayError) else unexpected_error(call.request_id)
    call.headers = (*call.headers, _MAY_NOT_RETRY)
    headers = (("content-type", "application/json"), _MAY_NOT_RETRY)
    status, body = call.dialect.render_error(shown, shown.status, call.request_id)
    await execution.finish(Reply(status, headers, body))
