"""Every error of the gateway in OpenAI's shape, rendered here and nowhere else, and the interface of other shapes."""

from __future__ import annotations

import math
from typing import Protocol

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
    """The body of a reply that is an error."""

    error: ErrorDetail


def body_of(error: GatewayError) -> ErrorBody:
    """Return an error in OpenAI's shape."""
    limit = error.limit if isinstance(error, LimitReached) else None
    shown = limit if isinstance(limit, Explanation) else msgspec.UNSET
    return ErrorBody(ErrorDetail(error.message, error.type, error.param, error.code, shown))


class RenderError(Protocol):
    """A function that renders errors in the shape of one API."""

    def __call__(self, error: GatewayError, status: int, request_id: str) -> tuple[int, bytes]:
        """Return the status and the JSON body of a reply. status: the error's status in OpenAI's API."""


def as_openai(error: GatewayError, status: int, request_id: str) -> tuple[int, bytes]:
    """Return an error as OpenAI's API shows it."""
    return status, msgspec.json.encode(body_of(error))


class Dialect(msgspec.Struct, frozen=True):
    """The features that all replies of one API share: the shape of errors, and headers."""

    render_error: RenderError
    id_header: str = ""
    """A header of every reply that has the request's id, beside `x-request-id`; "" for none."""


OPENAI = Dialect(as_openai)


def headers_of(error: GatewayError) -> dict[str, str]:
    """Return the headers of an error: its own, and those that say whether and when to try again."""
    headers = dict(error.headers)
    if error.retry_after_s is not None:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
        headers["retry-after-ms"] = str(math.ceil(error.retry_after_s * 1e3))
    if error.should_retry is not None:
        headers["x-should-retry"] = "true" if error.should_retry else "false"
    return headers


def unexpected_error(request_id: str) -> GatewayError:
    """Return the error that a client sees for an error in the gateway: it says only how to report it."""
    return GatewayError(
        f"The server had an error while processing your request. Its request id is {request_id}.",
        code="internal_error",
    )
