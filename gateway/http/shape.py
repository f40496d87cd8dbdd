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
    """The names of the parts that are text; all other parts are described as binary."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all fields."""
        return (*self.required, *self.optional)


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """The types of the bodies that one route reads and sends."""

    body: type[msgspec.Struct] | None = None
    """The struct of a JSON body; None: the route takes none."""
    reply: Any = None
    """The struct of a JSON reply; for a route that can stream, the struct of a reply that is not streamed."""
    event: Any = None
    """The data of each event of a stream: a union of structs whose tags are the events' names, or one struct where they
    have no name."""
    has_end_mark: bool = True
    """True: the last event of a stream is `[DONE]`."""
    accepted_reply: type[msgspec.Struct] | None = None
    """The struct of the JSON reply with status 202, where the work goes on."""
    statuses: Mapping[int, type[msgspec.Struct]] = {}
    """The structs of JSON replies to failures that have a body of their own, by status."""
    media: tuple[str, ...] = ()
    """The media types of replies that are not JSON."""
    query: Mapping[str, Schema] = {}
    """The schemas of query parameters that are not plain text, by name."""
    needed: tuple[str, ...] = ()
    """The names of required query parameters."""
    form: Form | None = None
    """The parts of a multipart body instead of JSON."""
    is_billed: bool = False
    """True: requests to the route run a model, count against limits, and may have an Idempotency-Key."""
    example: Example = Example()


def shape(**what: Any) -> dict[str, Shape]:
    """Return the `opt` of a route handler; what: the fields of `Shape`."""
    return {"shape": Shape(**what)}
