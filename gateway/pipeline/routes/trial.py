"""One trial of a request at one target of a route. Plain data, for whoever prepares and admits the request there."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from gateway.domain.errors import GatewayError


class Trial(msgspec.Struct, frozen=True):
    """A trial of a request at one target of a route.

    The default is the only trial, as for a request that names no route.
    """

    first_attempt: int = 0
    """The number of the first attempt at the target: attempts at one request have a number each."""
    row: int = 0
    """The number of the request's first row in the ledger; answers that were billed but rejected have earlier rows."""
    with_logprobs: bool = False
    """True where the check of the answer needs its log-probabilities, whether or not the client asked for them."""
    instant_ns: int | None = None
    """The time of the request in Unix nanoseconds, set by an earlier trial; the rows of all attempts have it."""
    is_followed: Callable[[GatewayError], bool] | None = None
    """The function that tells whether another target is tried after an error; None: no other target is ever tried.

    With a function, an experiment records the request for its arm only once the run is told that it `serves`.
    """


ALONE = Trial()


def row_id(request_id: str, index: int) -> str:
    """Return the id of the `index`-th row of a request in the ledger; the first row has the id that the client sees."""
    return request_id if index == 0 else f"{request_id}.{index}"
