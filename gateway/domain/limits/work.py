"""Computes the most that a request can use of each unit, and the amounts that it used in the end. Pure arithmetic."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Protocol

import msgspec

from gateway.domain.limits.limit import Limit, Unit

PRICE_SCALE = 10**10
"""The number of tokens that a `Price` is for: prices are per million tokens, and discounts in basis points."""

MAX_PROMPTS_AT_ONCE = 16
"""The most prompts of one request that run at the same time; the others wait in the gateway."""


class Price(msgspec.Struct, frozen=True):
    """The most that tokens can cost: nanos of the currency per `PRICE_SCALE` tokens. Cached tokens never cost more."""

    input: int = 0
    output: int = 0

    def highest_cost(self, prompt_tokens: int, completion_tokens: int) -> int:
        """Return the most that these numbers of tokens can cost, in nanos.

        The cost is rounded up, since the ledger rounds each row once, to the nearest.
        """
        return -(-(prompt_tokens * self.input + completion_tokens * self.output) // PRICE_SCALE)


class Prices(Protocol):
    """The prices of models, without I/O."""

    def highest_price(
        self, organization_id: str, project_id: str, model: str, service_tier: str, instant_ns: int
    ) -> Price:
        """Return the highest price that may apply to a request that is admitted at about this Unix time in ns."""

    def currency(self, organization_id: str) -> str:
        """Return the currency of an organization's prices in lower case; "usd" where there are none."""


_COUNTS: dict[Unit, tuple[int, int, int]] = {
    "requests": (1, 0, 0),
    "input_tokens": (0, 1, 0),
    "output_tokens": (0, 0, 1),
    "tokens": (0, 1, 1),
    "concurrency": (0, 0, 0),
    "storage_bytes": (0, 0, 0),
    "enqueued_batch_tokens": (0, 0, 0),
}
"""The amounts for which a request, a prompt token and a completion token count, by unit."""


class PromptWork(msgspec.Struct, frozen=True):
    """One prompt of a request."""

    request_id: str
    """The id of the prompt's row in the ledger."""
    prompt_tokens: int
    num_choices: int
    max_tokens: int
    """The most completion tokens of each choice."""


class RequestWork(msgspec.Struct, frozen=True):
    """One request with all its prompts."""

    parts: tuple[PromptWork, ...]
    price: Price = Price()
    min_tokens: int = 1
    """The number of tokens below which no completion may be clamped."""

    @property
    def max_tokens(self) -> int:
        """The most tokens of any part of the work."""
        return max(part.max_tokens for part in self.parts)

    def least(self, limit: Limit) -> int:
        """Return the fewest completion tokens with which the request is worth running.

        A minute's limit is free again soon, so it refuses a request rather than cutting it short. A budget of days and
        a balance are used up to their end.
        """
        if limit.window in ("day", "month") or limit.is_balance:
            return min(self.max_tokens, self.min_tokens)
        return self.max_tokens

    def is_request(self, index: int) -> bool:
        """Tell whether a part counts as one request in the unit `requests`.

        As in the ledger, further prompts and further answers do not count: their ids contain a dot.
        """
        return index == 0 and "." not in self.parts[index].request_id

    def of_parts(self, units: Sequence[Unit], cap: int) -> list[list[int]]:
        """Return for each part the most that it can use of each unit when completions have at most cap tokens."""
        return [
            part_amounts(
                units,
                part.prompt_tokens,
                part.num_choices * (cap if cap < part.max_tokens else part.max_tokens),
                self.price,
                is_request=self.is_request(index),
            )
            for index, part in enumerate(self.parts)
        ]

    def amount(self, unit: Unit, cap: int) -> int:
        """Return the most that all parts can use of a unit when completions have at most cap tokens."""
        return request_amounts((unit,), self.of_parts((unit,), cap))[0]

    def cap_within(self, unit: Unit, budget: int) -> int | None:
        """Return the largest cap up to max_tokens whose amount fits the budget; None where even 0 does not fit."""
        if self.amount(unit, self.max_tokens) <= budget:
            return self.max_tokens
        num_fitting = bisect_right(range(self.max_tokens), budget, key=lambda cap: self.amount(unit, cap))
        return num_fitting - 1 if num_fitting else None


def request_amounts(units: Sequence[Unit], of_parts: Sequence[list[int]]) -> list[int]:
    """Return the amounts of a request, in the order of units, as the sums of the amounts of its parts.

    For the unit `concurrency` the amount is 1 for the whole request, since parts have none.
    """
    sums = of_parts[0] if len(of_parts) == 1 else [sum(each) for each in zip(*of_parts, strict=True)]
    return [1 if unit == "concurrency" else each for unit, each in zip(units, sums, strict=True)]


def part_amounts(
    units: Sequence[Unit], prompt_tokens: int, completion_tokens: int, price: Price, *, is_request: bool
) -> list[int]:
    """Return the amount of each unit that one part used; for cost, the most.

    is_request: True if the part counts as one request. price: the price of tokens.
    """
    found = []
    for unit in units:
        if unit == "cost_nanos":
            found.append(price.highest_cost(prompt_tokens, completion_tokens))
        else:
            of_request, of_prompt, of_completion = _COUNTS[unit]
            found.append(of_request * is_request + of_prompt * prompt_tokens + of_completion * completion_tokens)
    return found
