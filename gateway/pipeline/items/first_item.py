"""The first item of a prompt, waited for within a bound. Until it is there, something else can answer the request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from gateway.backends.generation import Item
from gateway.domain.errors import Overloaded
from gateway.pipeline.items.attempts import Restarted

CHECK_S = 0.25
"""Seconds between checks whether the client still waits."""

Source = AsyncGenerator[Item | Restarted]


class TooSlow(Overloaded):
    """The error for a first token that did not come within the bound of a routing policy."""

    code = "first_token_timeout"

    def __init__(self) -> None:
        super().__init__("No first token came in the time that the route allows. Send the request again later.")


async def await_first_item(
    source: Source, bound_s: float | None, check: Callable[[], None], give_up: Callable[[], None]
) -> Source:
    """Return the items of source, once the first of them is there.

    check: raises where waiting is of no more use. give_up: called before the source is closed for being too slow.

    Raises TooSlow: when the first item is not there after `bound_s`.
    Raises the errors of the source: when it fails before its first item.
    Raises as `check`.
    """
    first, loop = asyncio.create_task(_next_item(source)), asyncio.get_running_loop()
    end_s = None if bound_s is None else loop.time() + bound_s
    try:
        while not first.done():
            wait_s = CHECK_S if end_s is None else min(CHECK_S, end_s - loop.time())
            if wait_s <= 0:
                give_up()
                raise TooSlow
            await asyncio.wait({first}, timeout=wait_s)
            if not first.done():
                check()
    except BaseException:
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await source.aclose()
        raise
    return _first_and_rest(first.result(), source)


async def _next_item(source: Source) -> Item | Restarted:
    return await anext(source)


async def _first_and_rest(first: Item | Restarted, source: Source) -> Source:
    async with aclosing(source) as items:
        yield first
        async for item in items:
            yield item
