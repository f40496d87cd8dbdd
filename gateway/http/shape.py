"""The declarations of routes about the bodies that they read and answer with, beyond their functions' signatures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

Schema = dict[str, Any]
"""A JSON schema."""


class Example(msgspec.Struct, frozen=True):
    """A body that the route takes, and a reply to it. client_method: of OpenAI's Python client, which sends it."""

    body: dict[str, Any] | None = None
    reply: dict[str, Any] | None = None
    client_method: str = ""


class Form(msgspec.Struct, frozen=True):
    """The parts of a multipart body."""

    required: tuple[str, ...]
    optional: tuple[str, ...]
    texts: tuple[str, ...] = ()
    """The parts that are plain text; any other is a file, or text as well."""

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.required, *self.optional)


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """body: JSON that it takes. reply: JSON that it answers with; for a route that can stream, the whole answer, and
    event what each event of a stream holds: a union of structs whose tags are the events' names, or one struct where
    they have no name. has_end_mark: the last event of a stream is `[DONE]`.

    accepted: JSON that it answers with, as status 202, where the work goes on. statuses: JSON of failures that have a
    body of their own. media: types of what it answers with that is no JSON. query: schemas of query parameters that are
    no plain text; needed: those that must be there. form: a multipart body instead of JSON. is_billed: it computes,
    within limits, and may be asked for with an Idempotency-Key.
    """

    body: type[msgspec.Struct] | None = None
    reply: Any = None
    event: Any = None
    has_end_mark: bool = True
    accepted: type[msgspec.Struct] | None = None
    statuses: Mapping[int, type[msgspec.Struct]] = {}
    media: tuple[str, ...] = ()
    query: Mapping[str, Schema] = {}
    needed: tuple[str, ...] = ()
    form: Form | None = None
    is_billed: bool = False
    example: Example = Example()


def shape(**what: Any) -> dict[str, Shape]:
    """Return the `opt` of a route handler; what: the fields of `Shape`."""
    return {"shape": Shape(**what)}
