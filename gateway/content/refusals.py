"""Reasons why a request with an Idempotency-Key gets no reply.

request_id: the id of the request that ran, or runs.
"""

from __future__ import annotations

from gateway.domain.errors import Conflict, InvalidRequest, Overloaded

PARAM = "Idempotency-Key"


def reused_key_error() -> InvalidRequest:
    """Return the error for an Idempotency-Key that was used with a different request."""
    return InvalidRequest(
        "This Idempotency-Key was already used with a different request. Use a new key, or send the same path and body "
        "with the same API key.",
        param=PARAM,
        code="idempotency_key_reused",
    )


def in_progress(request_id: str) -> Conflict:
    """Return the error for an Idempotency-Key whose request still runs."""
    return Conflict(
        f"The request with this Idempotency-Key, {request_id}, is still running. Try again when it has ended.",
        param=PARAM,
        code="idempotency_in_progress",
        retry_after_s=1.0,
        should_retry=True,
    )


def lost_reply_error(request_id: str) -> Conflict:
    """Return the error for an Idempotency-Key whose request may have run, and whose reply was lost."""
    return Conflict(
        f"The reply to the request with this Idempotency-Key, {request_id}, was lost. The request may have been "
        "billed and is not run again. Use another Idempotency-Key to run the request anew.",
        param=PARAM,
        code="idempotency_reply_lost",
        should_retry=False,
    )


def reply_not_stored(request_id: str, why: str) -> Conflict:
    """Return the error for an Idempotency-Key whose reply was not stored. why: the reason, as the end of a sentence."""
    return Conflict(
        f"The request with this Idempotency-Key, {request_id}, has run, and its reply was not stored: {why}.",
        param=PARAM,
        code="idempotency_reply_not_kept",
        should_retry=False,
    )


def database_away_error() -> Overloaded:
    """Return the error for requests with an Idempotency-Key while the database cannot be reached."""
    return Overloaded(
        "Requests with an Idempotency-Key cannot be run at the moment. Try again later.", param=PARAM, retry_after_s=1.0
    )
