"""The plain prompts that one request may hold: a text, texts, token ids, or lists of token ids."""

from __future__ import annotations

from operator import countOf
from typing import TypeGuard

from gateway.domain.errors import InvalidRequest


def prompts(given: str | list[str | int | list[int]], field: str, at_most: int) -> list[str | list[int]]:
    """Return the given prompts in order.

    field: the client's name of the prompts, for errors. at_most: the most prompts.

    Raises InvalidRequest: for lists that mix kinds, naming the first that differs, and for too many prompts.
    """
    if isinstance(given, str):
        return [given]
    if _all_ints(given):
        return [given]
    if len(given) > at_most:
        raise InvalidRequest(f"'{field}' may hold at most {at_most} prompts.", param=field, code="invalid_value")
    kind = type(given[0])
    odd = next((index for index, each in enumerate(given) if type(each) is not kind), None)
    if odd is None:
        return [each for each in given if not isinstance(each, int)]
    raise InvalidRequest(
        f"Invalid value for '{field}[{odd}]', which is of another kind than '{field}[0]': expected a string, a list of "
        "strings, a list of token ids, or a list of lists of token ids.",
        param=f"{field}[{odd}]",
        code="invalid_type",
    )


def place_of(given: object, index: int) -> int | None:
    """Return the index of a prompt in the list that its field holds; None where the field holds one prompt alone.

    given: the field. index: the place of the prompt among those that `prompts` returned.
    """
    return index if isinstance(given, list) and not isinstance(given[0], int) else None


def _all_ints(given: list[str | int | list[int]]) -> TypeGuard[list[int]]:
    return countOf(map(type, given), int) == len(given)  # the types that JSON is decoded to, at half of the time
