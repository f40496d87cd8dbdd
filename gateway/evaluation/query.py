"""Query parameters of the list of votes. Refuses unknown ones by name."""

from __future__ import annotations

import typing
from collections.abc import Iterable
from typing import Any

import msgspec

from gateway.db.experiments.feedback.votes import VoteQuery
from gateway.domain.errors import InvalidRequest, shortened
from gateway.domain.experiments.feedback.votes import Source
from gateway.evaluation.wire import MAX_UNIT_CHARS

MAX_LIMIT = 100
MAX_CHARS = {"request_id": 128, "unit": MAX_UNIT_CHARS, "metric": 64, "source": 16, "after": 64, "limit": 3}
SOURCES = typing.get_args(Source)

QUERY: dict[str, dict[str, Any]] = {
    "request_id": {"type": "string"},
    "unit": {"type": "string"},
    "metric": {"type": "string"},
    "source": {"type": "string", "enum": list(SOURCES)},
    "after": {"type": "string"},
    "limit": {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": 20},
}


def read_query(params: Iterable[tuple[str, str]]) -> tuple[VoteQuery, str | None]:
    """Return the query of a list of votes, and the unit that all of them are about, if one is given.

    Raises InvalidRequest: for parameters that are unknown or wrong.
    """
    given: dict[str, str] = {}
    for name, value in params:
        if name not in QUERY:
            shown = shortened(name)
            raise InvalidRequest(f"Unrecognized query parameter: {shown}", param=shown, code="unknown_parameter")
        if name in given:
            raise _invalid_value(name, "the parameter was given twice")
        if "\0" in value:
            raise _invalid_value(name, "it must not hold a null character")
        if len(value) > MAX_CHARS[name]:
            raise _invalid_value(name, f"it may have {MAX_CHARS[name]} characters at most")
        given[name] = value
    if given.get("source", "user") not in SOURCES:
        raise _invalid_value("source", f"it must be one of {', '.join(SOURCES)}")
    limit, unit = given.pop("limit", "20"), given.pop("unit", None)
    if not (limit.isascii() and limit.isdigit() and 1 <= int(limit) <= MAX_LIMIT):
        raise _invalid_value("limit", f"it must be a number from 1 to {MAX_LIMIT}")
    return msgspec.convert(given | {"limit": int(limit)}, VoteQuery), unit


def _invalid_value(name: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"Invalid value for '{name}': {why}.", param=name, code="invalid_value")
