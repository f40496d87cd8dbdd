"""Lists in OpenAI's shape: `limit` items that follow the one with id `after`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from litestar.datastructures import MultiDict

from gateway.errors import InvalidRequest

DEFAULT_LIMIT = 20
MAX_LIMIT = 100


class ListQuery(msgspec.Struct, frozen=True):
    """What a list is asked for. name: only the item of this name."""

    after: str | None
    limit: int
    name: str | None


class Page(msgspec.Struct, frozen=True):
    """One page of a list."""

    data: list[Any]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: Literal["list"] = "list"


def read_list_query(params: MultiDict[Any], *, by_name: bool = False) -> ListQuery:
    """The query parameters of a list; raises InvalidRequest naming the one that is unknown or wrong.

    by_name: whether the list can be filtered by `name`.
    """
    known = {"after", "limit", "name"} if by_name else {"after", "limit"}
    for param in params:
        if param not in known:
            raise InvalidRequest(f"Unrecognized query parameter: {param}", param=param, code="unknown_parameter")
        if "\0" in params[param]:
            raise InvalidRequest(f"Invalid value for '{param}'.", param=param, code="invalid_value")
    limit = params.get("limit", str(DEFAULT_LIMIT))
    if not (limit.isascii() and limit.isdecimal() and len(limit) <= 3 and 1 <= int(limit) <= MAX_LIMIT):
        raise InvalidRequest(
            f"Invalid value for 'limit': expected a whole number from 1 to {MAX_LIMIT}.",
            param="limit",
            code="invalid_value",
        )
    return ListQuery(after=params.get("after"), limit=int(limit), name=params.get("name"))


def unknown_cursor(after: str) -> InvalidRequest:
    """The refusal of an `after` that is no item of the list."""
    return InvalidRequest(f"No item of this list has the id '{after}'.", param="after", code="invalid_value")


def page(items: Sequence[Any], limit: int) -> Page:
    """A page of up to limit items, each with an `id`; items holds one more if there is one."""
    shown = list(items[:limit])
    return Page(
        data=shown,
        first_id=shown[0].id if shown else None,
        last_id=shown[-1].id if shown else None,
        has_more=len(items) > limit,
    )
