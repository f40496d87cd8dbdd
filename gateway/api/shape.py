"""What a route says of the bodies that it reads and answers with, where its function's signature does not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

Schema = dict[str, Any]
"""A JSON schema."""


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """body: JSON that it takes. reply: JSON that it answers with; for a route that can stream, the whole answer.
    accepted: JSON that it answers with, as status 202, where the work goes on. media: types of what it answers with
    that is no JSON. query: schemas of query parameters that are no plain text; needed: those that must be there."""

    body: type[msgspec.Struct] | None = None
    reply: type[msgspec.Struct] | None = None
    accepted: type[msgspec.Struct] | None = None
    media: tuple[str, ...] = ()
    query: Mapping[str, Schema] = {}
    needed: tuple[str, ...] = ()


def shape(
    *,
    body: type[msgspec.Struct] | None = None,
    reply: type[msgspec.Struct] | None = None,
    accepted: type[msgspec.Struct] | None = None,
    media: tuple[str, ...] = (),
    query: Mapping[str, Schema] | None = None,
    needed: tuple[str, ...] = (),
) -> dict[str, Shape]:
    """The `opt` of a route handler."""
    return {"shape": Shape(body=body, reply=reply, accepted=accepted, media=media, query=query or {}, needed=needed)}
