"""Errors as Anthropic's clients expect them: their types, their statuses, and the field at fault in the message."""

from __future__ import annotations

from typing import Literal

import msgspec
from litestar.types import HTTPScope

from gateway.domain.errors import GatewayError
from gateway.http.error_body import OPENAI, Dialect

OVERLOADED = 529

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    OVERLOADED: "overloaded_error",
}
_STATUSES = {502: 500, 503: OVERLOADED}
"""Anthropic's statuses for OpenAI statuses that Anthropic's clients do not know."""

ErrorType = Literal[
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "not_found_error",
    "request_too_large",
    "rate_limit_error",
    "api_error",
    "timeout_error",
    "overloaded_error",
]


class MessageErrorDetail(msgspec.Struct, frozen=True):
    """The reason why a request was refused or failed."""

    type: ErrorType
    message: str
    """The reason in words, which name the field at fault."""


class MessageError(msgspec.Struct, frozen=True, tag_field="type", tag="error"):
    """The body of a reply that is an error."""

    error: MessageErrorDetail
    request_id: str | None


def message_error(error: GatewayError, status: int, request_id: str) -> tuple[int, MessageError]:
    """Return the status and the body of an error in Anthropic's API. status: the error's status in OpenAI's API."""
    status = _STATUSES.get(status, status)
    type = _TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    message = error.message
    if error.param is not None and error.param not in message:
        message = f"{error.param}: {message}"
    return status, MessageError(MessageErrorDetail(type, message), request_id)  # type: ignore[arg-type]


def as_anthropic(error: GatewayError, status: int, request_id: str) -> tuple[int, bytes]:
    """Return the status and the JSON body with which Anthropic's API shows an error."""
    status, body = message_error(error, status, request_id)
    return status, msgspec.json.encode(body)


ANTHROPIC = Dialect(as_anthropic, id_header="request-id")

_PATH, _MODELS = "/v1/messages", "/v1/models"


def dialect_of(scope: HTTPScope) -> Dialect:
    """Return the dialect of a request: by its path and, for models, by the header that Anthropic's clients send."""
    path = scope["path"]
    if path.startswith(_PATH) and path[len(_PATH) : len(_PATH) + 1] in ("", "/"):
        return ANTHROPIC
    return ANTHROPIC if path.startswith(_MODELS) and is_anthropic(scope) else OPENAI


def is_anthropic(scope: HTTPScope) -> bool:
    """Tell whether a request comes from one of Anthropic's clients."""
    return any(name == b"anthropic-version" for name, _ in scope["headers"])
