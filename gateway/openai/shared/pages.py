"""Pages of lists that are at hand as a whole, in OpenAI's shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from gateway.domain.errors import InvalidRequest
from gateway.openai.shared.list_query import MAX_SHOWN, Listing


class ListedObject(Protocol):
    """An object of a list, known by its id."""

    @property
    def id(self) -> str:
        """The object's id."""


T = TypeVar("T", bound=ListedObject)


def page_of(listed: Sequence[T], asked: Listing) -> tuple[Sequence[T], bool]:
    """Return a page of a list in ascending order, and whether more objects follow.

    Raises InvalidRequest: when nothing has the id `after`.
    """
    ordered = listed[::-1] if asked.order == "desc" else listed
    start = 0
    if asked.after is not None:
        places = {each.id: place for place, each in enumerate(ordered)}
        if asked.after not in places:
            raise unknown_cursor(asked.after)
        start = places[asked.after] + 1
    rest = ordered[start:]
    return rest[: asked.limit], len(rest) > asked.limit


def as_list(shown: Sequence[tuple[str, Any]], has_more: bool) -> dict[str, Any]:
    """Return a page in OpenAI's shape. shown: the objects, each with its id. has_more: whether others follow."""
    ids = [id for id, _ in shown]
    return {
        "object": "list",
        "data": [each for _, each in shown],
        "first_id": ids[0] if ids else None,
        "last_id": ids[-1] if ids else None,
        "has_more": has_more,
    }


def unknown_cursor(after: str | None) -> InvalidRequest:
    """Return the error for a page after an object that is not in the list.

    after: the id of the object; None where the request has none.
    """
    return InvalidRequest(
        f"Invalid value for 'after': this list has nothing with the id '{(after or '')[:MAX_SHOWN]}'.",
        param="after",
        code="invalid_value",
    )
