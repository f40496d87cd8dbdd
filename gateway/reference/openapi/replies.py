"""The answers of an operation: its replies, and each way in which it may refuse or fail.

Errors are one schema and one response per status, to which operations refer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.http.error_body import ErrorBody
from gateway.reference.openapi import headers
from gateway.reference.openapi.operations import Operation
from gateway.reference.openapi.streams import STREAM, event_schema

SchemaOf = Mapping[Any, dict[str, Any]]


STREAMS = (
    "The request is done. With `stream` the reply is `text/event-stream`. Its schema describes one event: its name, "
    "where it has one, and the JSON of its data. A stream that fails ends with an event that holds an error."
)


class Failure(msgspec.Struct, frozen=True):
    """A reply with an error, as a component of the document."""

    name: str
    """The name of the component."""
    description: str
    headers: dict[str, Any] = {}
    """The headers of the reply beyond those that every reply has."""


FAILURES = {
    400: Failure("BadRequest", "The request is wrong. `param` names the field, `message` says what to change."),
    401: Failure("Unauthorized", "The key or the login is missing, wrong, revoked or expired."),
    403: Failure("Forbidden", "The key or the person may not do this, or is suspended; `code` says which."),
    404: Failure("NotFound", "Nothing has this name or id, or the caller may not see it. Both get the same answer."),
    409: Failure(
        "Conflict",
        "The request conflicts with the present state, or with another request that is running.",
        headers.RETRY,
    ),
    413: Failure("TooLarge", "The body is larger than the server takes."),
    415: Failure(
        "UnsupportedCoding", "The body has a `Content-Encoding`, such as gzip: send it as it is.", headers.CODINGS
    ),
    429: Failure(
        "TooMany",
        "A limit is reached. With `rate_limit_exceeded` try again after `retry-after`. With `insufficient_quota` the "
        "budget of the day or the month is used up; `error.limit` says which limit, and how full it is. With "
        "`adapter_uploads_paused` several adapters of the project were refused in a row, and the next can be added "
        "after `retry-after`.",
        headers.RETRY | headers.LIMITS,
    ),
    431: Failure("HeadersTooLarge", "The request has more headers, or larger ones, than the server reads."),
    500: Failure(
        "ServerError", "The server made an error. Only output that you received is billed. Report the request id."
    ),
    502: Failure("EngineFailed", "The engine failed while it worked on the request. Send the request again."),
    503: Failure(
        "Unavailable", "The server cannot take the request now. Try again after `retry-after`.", headers.RETRY
    ),
    529: Failure("Overloaded", "The server cannot take the request now. Try again after `retry-after`.", headers.RETRY),
}


def failures(schema_of: SchemaOf) -> dict[str, dict[str, Any]]:
    """Return the document's `components.responses`: one response for each status of an error."""
    return {
        each.name: {
            "description": each.description,
            "headers": headers.references(headers.EVERY, each.headers),
            "content": as_json(schema_of[ErrorBody]),
        }
        for each in FAILURES.values()
    }


def replies(each: Operation, schema_of: SchemaOf) -> dict[str, dict[str, Any]]:
    """Return the `responses` of an operation, by status."""
    described = {"200": _success_reply(each, schema_of)}
    if each.shape.accepted_reply is not None:
        described["202"] = _reply_with_headers(
            "The work has begun and goes on.", as_json(schema_of[each.shape.accepted_reply])
        )
    for status in failure_statuses(each):
        described[str(status)] = {"$ref": f"#/components/responses/{FAILURES[status].name}"}
    for status, kind in each.shape.statuses.items():
        described[str(status)] = _reply_with_headers(FAILURES[status].description, as_json(schema_of[kind]))
    return described


def failure_statuses(each: Operation) -> list[int]:
    """Return the statuses with which an operation may refuse or fail."""
    found = {400, 429, 431, 500}
    if each.is_guarded or each.takes_body:  # an open route takes a body to let somebody in
        found |= {401, 403, 503}
    if each.params or each.access is not None or (each.is_guarded and each.takes_body):  # which may name a model
        found.add(404)
    if each.takes_body:
        found |= {413, 415}
    if each.shape.is_billed:
        found |= {409, 502}
    if each.access is not None and each.method != "GET":
        found.add(409)
    if 529 in each.shape.statuses:  # the API's own statuses, for errors to which others give these
        found -= {502, 503}
    return sorted(found)


def as_json(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema as the content of a JSON body."""
    return {"application/json": {"schema": schema}}


def _success_reply(each: Operation, schema_of: SchemaOf) -> dict[str, Any]:
    content = as_json(schema_of[each.reply]) if each.reply is not None else {}
    if content and each.shape.example.reply is not None:
        content["application/json"]["example"] = each.shape.example.reply
    if each.shape.event is not None:
        content[STREAM] = {"schema": event_schema(each.shape, schema_of)}
    content |= {media: {"schema": _schema_of_media(media)} for media in each.shape.media}
    described = _reply_with_headers("The request is done." if each.shape.event is None else STREAMS, content)
    if each.shape.is_billed:
        described["headers"] |= headers.references(
            headers.LIMITS, headers.ADAPTER, headers.EXPERIMENT, headers.ROUTE, headers.DETAILS, headers.REPLAY
        )
    return described


def _schema_of_media(media: str) -> dict[str, Any]:
    return {"type": "string"} if media.startswith("text/") else {"type": "string", "format": "binary"}


def _reply_with_headers(description: str, content: dict[str, Any]) -> dict[str, Any]:
    described = {"description": description, "headers": headers.references(headers.EVERY)}
    return described | ({"content": content} if content else {})
