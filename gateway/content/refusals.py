"""Why a request with an Idempotency-Key gets no reply. request_id: of the request that ran, or runs."""

from __future__ import annotations

from gateway.domain.errors import Conflict, InvalidRequest, Overloaded

PARAM = "Idempotency-Key"


def reused() -> InvalidRequest:
    return InvalidRequest(
        "This Idempotency-Key was used with another request: the same key needs the same path, body and API key.",
        param=PARAM,
        code="idempotency_key_reused",
    )


def in_progress(request_id: str) -> Conflict:
    return Conflict(
        f"The request with this Idempotency-Key is still running, as {request_id}.",
        param=PARAM,
        code="idempotency_in_progress",
        retry_after_s=1.0,
        should_retry=True,
    )


def lost(request_id: str) -> Conflict:
    return Conflict(
        f"The reply for this Idempotency-Key was lost; its request, {request_id}, may have been billed and is not "
        "run again. Use another key to run it anew.",
        param=PARAM,
        code="idempotency_reply_lost",
        should_retry=False,
    )


def not_kept(request_id: str, why: str) -> Conflict:
    return Conflict(
        f"The request with this Idempotency-Key has run, as {request_id}, and its reply is not kept: {why}.",
        param=PARAM,
        code="idempotency_reply_not_kept",
        should_retry=False,
    )


def unavailable() -> Overloaded:
    return Overloaded("Requests with an Idempotency-Key cannot be taken at the moment.", param=PARAM, retry_after_s=1.0)
