"""Turns failures of a server of another maker into the errors that clients get, without its words or its address."""

from __future__ import annotations

from gateway.backends.foreign.reply import ServerRefused
from gateway.domain.errors import (
    ENGINE_UNAVAILABLE,
    REFUSED_BY_SERVER,
    BackendFailed,
    GatewayError,
    InvalidRequest,
    Overloaded,
)

NOT_READY = "the server is not ready"
"""The reason that clients may read; operators read `ServerCondition.reason`."""

RETRY_AFTER_S = 1.0
MAX_RETRY_AFTER_S = 60.0

_FULL = frozenset({408, 409, 425, 429, 503, 529})
"""HTTP statuses of a server that has no room now."""

_CLIENTS = frozenset({400, 413, 422})
"""HTTP statuses of a request that the server refuses, however often it is sent."""


def not_ready(reason: str, code: str = ENGINE_UNAVAILABLE) -> Overloaded:
    """Return the error of a request that came while the server takes none.

    reason: the cause, which the message names in parentheses.
    """
    return Overloaded(
        f"No server can take the request now ({reason}). Send it again later.", code=code, retry_after_s=RETRY_AFTER_S
    )


def is_full(refused: ServerRefused) -> bool:
    """Tell whether the server has no room now, so that another one may."""
    return refused.status in _FULL


def is_clients_fault(refused: ServerRefused) -> bool:
    """Tell whether the server refuses the request itself, so that no other server would run it."""
    return refused.status in _CLIENTS


def server_refusal(refused: ServerRefused) -> GatewayError:
    """Return the error of a request that the server refused or failed at."""
    if is_full(refused):
        after_s = min(max(refused.retry_after_s or RETRY_AFTER_S, RETRY_AFTER_S), MAX_RETRY_AFTER_S)
        return Overloaded(
            "The server that runs this model has no room now. Send the request again later.", retry_after_s=after_s
        )
    if is_clients_fault(refused):
        if refused.code == "context_length_exceeded":
            return InvalidRequest(
                "The prompt and the completion are longer than this model's context. Send or ask for fewer tokens.",
                code="context_length_exceeded",
            )
        return InvalidRequest("The server that runs this model refuses the request.", code=REFUSED_BY_SERVER)
    return server_failure()


def server_failure() -> BackendFailed:
    """Return the error of a request at which the server failed."""
    return BackendFailed("The server that runs this model failed while it worked on the request.")
