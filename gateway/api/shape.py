"""What a route says of the bodies that it reads and answers with, where its function's signature does not."""

from __future__ import annotations

import msgspec


class Shape(msgspec.Struct, frozen=True):
    """body: JSON that it takes. reply: JSON that it answers with; for a route that can stream, the whole answer."""

    body: type[msgspec.Struct] | None = None
    reply: type[msgspec.Struct] | None = None


def shape(*, body: type[msgspec.Struct] | None = None, reply: type[msgspec.Struct] | None = None) -> dict[str, Shape]:
    """The `opt` of a route handler."""
    return {"shape": Shape(body, reply)}
