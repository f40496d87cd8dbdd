"""The reply that each exception becomes."""

from __future__ import annotations

from typing import Any

import structlog
from litestar import Request, Response
from litestar.exceptions import HTTPException
from litestar.types import ExceptionHandlersMap

from gateway.db.pool import CONFLICTS, UNAVAILABLE
from gateway.domain.errors import (
    BodyTooLarge,
    ClientGone,
    GatewayError,
    InvalidRequest,
    NotFound,
    Overloaded,
    shortened,
)
from gateway.http.error_body import headers_of, unexpected_error
from gateway.http.request.call import call_of
from gateway.http.request.paths import path_as_sent

log = structlog.get_logger(__name__)


def exception_handlers() -> ExceptionHandlersMap:
    """Return the functions that make replies of exceptions, by the exceptions' classes."""
    return {
        GatewayError: _gateway_error,
        HTTPException: _http_exception,
        Exception: _render_unexpected,
        **dict.fromkeys(CONFLICTS, _conflict),
        # A broken file is an OSError too, and no reason to try again: only its kinds that mean an absent peer are.
        **{
            kind: _database_unavailable for kind in (*UNAVAILABLE, ConnectionError, TimeoutError) if kind is not OSError
        },
    }


def _gateway_error(request: Request[Any, Any, Any], error: GatewayError) -> Response[bytes]:
    return _render(request, error, error.status, headers_of(error))


def _http_exception(request: Request[Any, Any, Any], error: HTTPException) -> Response[bytes]:
    """Return the reply to an error that the framework raises by itself.

    These are unknown paths, wrong methods, bodies over the cap, and bad parameters.
    """
    # The host of the request's URL would be the Host header's.
    status, where = error.status_code, f"{request.method} {shortened(path_as_sent(request.scope))}"
    if call_of(request.scope).client_gone:  # while its body was read, which the framework calls a fault of the server
        return _gateway_error(request, ClientGone("The client disconnected."))
    if status >= 500:
        return _render_unexpected(request, error)
    known: dict[int, GatewayError] = {
        404: NotFound(f"Invalid URL ({where}).", code="unknown_url"),
        405: InvalidRequest(f"Invalid method for URL ({where}).", code="method_not_allowed"),
        413: BodyTooLarge("The body of the request is too large."),
    }
    return _render(request, known.get(status) or InvalidRequest(error.detail), status, error.headers or {})


def _database_unavailable(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    log.warning("database_unavailable", request_id=call_of(request.scope).request_id, error=repr(error))
    return _gateway_error(request, Overloaded("The database does not answer at the moment.", retry_after_s=1.0))


def _conflict(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    log.warning("transactions_in_conflict", request_id=call_of(request.scope).request_id, error=repr(error))
    return _gateway_error(request, Overloaded("Another change came in between; nothing was done.", retry_after_s=1.0))


def _render_unexpected(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    request_id = call_of(request.scope).request_id
    log.error("request_failed", request_id=request_id, exc_info=error)
    return _render(request, unexpected_error(request_id), 500, {})


def _render(
    request: Request[Any, Any, Any], error: GatewayError, status: int, headers: dict[str, str]
) -> Response[bytes]:
    call = call_of(request.scope)
    call.error, call.refusal = error.code, error
    status, body = call.dialect.render_error(error, status, call.request_id)
    return Response(body, status_code=status, media_type="application/json", headers=headers)
