"""Query parameters of lists, as OpenAI's clients write them: after, limit, order, and filters.

Refuses unknown ones by name; knows nothing of the listed objects.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Literal

import msgspec

from gateway.domain.errors import InvalidRequest

DEFAULT_LIMIT, MAX_LIMIT = 20, 100
MAX_PAIRS = 16
MAX_SHOWN = 64

_METADATA = re.compile(r"metadata\[(?P<key>.{1,64})\]", re.DOTALL)


class Listing(msgspec.Struct, kw_only=True):
    """The query of a list: the page that is asked for, and the filters."""

    after: str | None = None
    """The id of the object before the page; None: the page is the first one."""
    limit: int = DEFAULT_LIMIT
    """The most objects of the page."""
    order: Literal["asc", "desc"] = "asc"
    """The order in which the objects are listed."""
    model: str | None = None
    """The model of all listed objects; None: any."""
    purpose: str | None = None
    """The purpose of all listed files; None: any."""
    metadata: dict[str, str] = {}
    """The pairs that all listed objects have among their metadata."""


def read_listing(
    params: Iterable[tuple[str, str]],
    *,
    known: Collection[str],
    order: Literal["asc", "desc"] = "asc",
    limit: int = DEFAULT_LIMIT,
    max_limit: int = MAX_LIMIT,
) -> Listing:
    """Return the query of a list, read from the query parameters of a request.

    known: names of the parameters that the list has. order, limit: the values for a query without these parameters.

    Raises InvalidRequest: when a parameter is unknown, given twice or wrong; the error names the parameter.
    """
    asked, seen = Listing(order=order, limit=limit), set()
    for name, value in params:
        pair = _METADATA.fullmatch(name)
        kind = "metadata" if pair else name
        if kind not in known or (kind == "metadata" and pair is None):
            name = name[:MAX_SHOWN]
            raise InvalidRequest(f"Unrecognized query parameter: {name}", param=name, code="unknown_parameter")
        if name in seen:
            raise _invalid_value(name, "the parameter was given twice")
        seen.add(name)
        if "\0" in name + value:
            raise _invalid_value(name, "it must not hold a null character")
        match kind:
            case "limit":
                asked.limit = _limit(value, max_limit)
            case "order":
                asked.order = _order(value)
            case "after":
                asked.after = value
            case "model":
                asked.model = value
            case "purpose":
                asked.purpose = value
            case _:
                assert pair is not None
                asked.metadata[pair["key"]] = value
    if len(asked.metadata) > MAX_PAIRS:
        raise _invalid_value("metadata", f"there are at most {MAX_PAIRS} pairs")
    return asked


def _limit(value: str, max_limit: int) -> int:
    is_number = value.isascii() and value.isdigit() and len(value) <= len(str(max_limit))
    if not (is_number and 1 <= int(value) <= max_limit):
        raise _invalid_value("limit", f"it must be a number from 1 to {max_limit}")
    return int(value)


def _order(value: str) -> Literal["asc", "desc"]:
    match value:
        case "asc" | "desc":
            return value
    raise _invalid_value("order", "it must be 'asc' or 'desc'")


def _invalid_value(name: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"Invalid value for '{name}': {why}.", param=name, code="invalid_value")
