"""Every error of the gateway in OpenAI's shape, rendered here and nowhere else."""

from __future__ import annotations

import math

import msgspec

from gateway.domain.errors import GatewayError, LimitReached
from gateway.domain.limits.refusal import Explanation


class ErrorDetail(msgspec.Struct, frozen=True):
    """The reason why a request was refused or failed."""

    message: str
    """The reason in words."""
    type: str
    param: str | None
    """The field at fault."""
    code: str | None
    """The reason for programs."""
    limit: Explanation | msgspec.UnsetType = msgspec.UNSET
    """The limit that refused the request, and how full it is."""


class ErrorBody(msgspec.Struct, frozen=True):
    error: ErrorDetail


def body_of(error: GatewayError) -> ErrorBody:
    limit = error.limit if isinstance(error, LimitReached) else None
    shown = limit if isinstance(limit, Explanation) else msgspec.UNSET
    return ErrorBody(ErrorDetail(error.message, error.type, error.param, error.code, shown))


def headers_of(error: GatewayError) -> dict[str, str]:
    """Return the headers of an error, which say when to try again, and whether."""
    headers = dict(error.headers) if isinstance(error, LimitReached) else {}
    if error.retry_after_s is not None:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
        headers["retry-after-ms"] = str(math.ceil(error.retry_after_s * 1e3))
    if error.should_retry is not None:
        headers["x-should-retry"] = "true" if error.should_retry else "false"
    return headers


def unexpected(request_id: str) -> GatewayError:
    """Return what a client sees of an error of ours: nothing but how to report it."""
    return GatewayError(
        f"The server had an error while processing your request. Its request id is {request_id}.",
        code="internal_error",
    )
