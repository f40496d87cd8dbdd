"""The declarations of routes about the bodies that they read and answer with, beyond their functions' signatures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

Schema = dict[str, Any]
"""A JSON schema."""


class Example(msgspec.Struct, frozen=True):
    """A body that the route takes, and a reply to it."""

    body: dict[str, Any] | None = None
    reply: dict[str, Any] | None = None
    client_method: str = ""
    """The method of OpenAI's Python client that sends the body."""


class Form(msgspec.Struct, frozen=True):
    """The parts of a multipart body."""

    required: tuple[str, ...]
    optional: tuple[str, ...]
    texts: tuple[str, ...] = ()
    """The parts that are plain text; any other is a file, or text as well."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all fields."""
        return (*self.required, *self.optional)


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """The bodies of one route."""

    body: type[msgspec.Struct] | None = None
    """The struct of a JSON body; None: the route takes none."""
    reply: Any = None
    """The struct of a JSON reply; for a route that can stream, of the whole reply."""
    event: Any = None
    """The data of each event of a stream: a union of structs whose tags are the events' names, or one struct where they
    have no name."""
    has_end_mark: bool = True
    """True: the last event of a stream is `[DONE]`."""
    accepted: type[msgspec.Struct] | None = None
    """The struct of the JSON reply with status 202, where the work goes on."""
    statuses: Mapping[int, type[msgspec.Struct]] = {}
    """Structs of JSON replies to failures that have a body of their own."""
    media: tuple[str, ...] = ()
    """Types of replies that are no JSON."""
    query: Mapping[str, Schema] = {}
    """Schemas of query parameters that are no plain text."""
    needed: tuple[str, ...] = ()
    """Query parameters that must be there."""
    form: Form | None = None
    """The parts of a multipart body instead of JSON."""
    is_billed: bool = False
    """True: the route computes, within limits, and takes an Idempotency-Key."""
    example: Example = Example()


def shape(**what: Any) -> dict[str, Shape]:
    """Return the `opt` of a route handler; what: the fields of `Shape`."""
    return {"shape": Shape(**what)}
