"""Lists in OpenAI's shape: `limit` items that follow the one with id `after`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Literal, Protocol, TypeVar

import msgspec
from litestar.datastructures import MultiDict

from gateway.domain.errors import InvalidRequest


class Item(Protocol):
    """An item of a list."""

    @property
    def id(self) -> str:
        """The id by which `after` names the item."""
        ...


T = TypeVar("T")
ItemT = TypeVar("ItemT", bound=Item)

DEFAULT_LIMIT = 20
MAX_LIMIT = 100


class ListQuery(msgspec.Struct, frozen=True):
    """The parameters of a list: how many items, and the id of the item before them."""

    after: str | None
    limit: int


class Page(msgspec.Struct, Generic[T], frozen=True):
    """A page of a list."""

    data: list[T]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: Literal["list"] = "list"


def read_list_query(params: MultiDict[Any]) -> ListQuery:
    """Read the parameters of a list.

    Raises InvalidRequest: when `limit` is not a whole number from 1 to `MAX_LIMIT`.
    """
    limit = params.get("limit", str(DEFAULT_LIMIT))
    if not (limit.isascii() and limit.isdecimal() and len(limit) <= 3 and 1 <= int(limit) <= MAX_LIMIT):
        raise wrong_value("limit", f"expected a whole number from 1 to {MAX_LIMIT}")
    return ListQuery(after=params.get("after"), limit=int(limit))


def read_flag(params: MultiDict[Any], name: str, default: Literal["true", "false"] = "false") -> bool:
    """Return a query parameter that is `true` or `false`.

    default: the value where the request has no such parameter.

    Raises InvalidRequest: when the value is another; the error names the parameter.
    """
    value = params.get(name, default)
    if value not in ("true", "false"):
        raise wrong_value(name, "expected true or false")
    return bool(value == "true")


def wrong_value(param: str, reason: str) -> InvalidRequest:
    """Return the error for a parameter's value. reason: what is wrong or was expected, without a full stop."""
    return InvalidRequest(f"Invalid value for '{param}': {reason}.", param=param, code="invalid_value")


def unknown_cursor(after: str) -> InvalidRequest:
    """Return the error for an `after` that is no item of the list."""
    return InvalidRequest(
        f"Invalid value for 'after': no item of this list has the id '{after}'.", param="after", code="invalid_value"
    )


def page(items: Sequence[ItemT], limit: int) -> Page[ItemT]:
    """Return a page of up to limit items, each with an `id`.

    items: the items of the page, and one more if there is one.
    """
    shown = list(items[:limit])
    return Page(
        data=shown,
        first_id=shown[0].id if shown else None,
        last_id=shown[-1].id if shown else None,
        has_more=len(items) > limit,
    )


def page_of_all(items: Sequence[ItemT], query: ListQuery) -> Page[ItemT]:
    """Return the page of a whole list that the query asks for. Raises InvalidRequest: when `after` is unknown."""
    if query.after is None:
        return page(items, query.limit)
    places = [index for index, item in enumerate(items) if item.id == query.after]
    if not places:
        raise unknown_cursor(query.after)
    return page(items[places[0] + 1 :], query.limit)
