"""Turns failures of an engine into the errors that clients get."""

from __future__ import annotations

from engine.protocol import EngineError
from gateway.domain.errors import ENGINE_UNAVAILABLE, BackendFailed, GatewayError, InvalidRequest, Overloaded

RETRY_AFTER_S = 1.0

REFUSALS = frozenset({"invalid_request", "adapter_rejected"})
"""Codes of an engine that cannot serve what a request asks for, such as its grammar or its adapter."""


def not_ready(reason: str, code: str = ENGINE_UNAVAILABLE) -> Overloaded:
    """Return the error of a request that came while no engine takes any.

    reason: the cause, which the message names in parentheses.
    """
    return Overloaded(
        f"No engine can take the request now ({reason}). Send it again later.", code=code, retry_after_s=RETRY_AFTER_S
    )


def window_full() -> Overloaded:
    """Return the error of a request that found no place in the engine's window in time."""
    reason = "every place in the engine's queue is taken"
    return Overloaded(f"No engine can take the request now ({reason}).", retry_after_s=RETRY_AFTER_S)


def failure(error: EngineError) -> GatewayError:
    """Return the error of a request that the engine ended with an error of its own."""
    match error.code:
        case "queue_full" | "draining":
            return Overloaded(
                f"The engine could not take the request ({error.message}).",
                code=ENGINE_UNAVAILABLE if error.code == "draining" else None,
                retry_after_s=error.retry_after_s or RETRY_AFTER_S,
            )
        case "invalid_request":
            return InvalidRequest(error.message, param=error.label or None, code="invalid_value")
        case "adapter_rejected":
            return InvalidRequest(error.message, param="model")
        case "internal":
            return BackendFailed(f"The engine failed while it worked on the request ({error.message}).")
