"""Computes the cost of a row of usage by the same arithmetic as `cost_of` in the schema, which is the one that bills.

The ledger is priced in the transaction that writes it, so that no gateway's idea of the price book counts; this is for
checks and previews. Money is an integer of nanos of the currency, and floats never come near it.
"""

from __future__ import annotations

import msgspec

TOKENS_PER_PRICE = 1_000_000
WHOLE_BASIS_POINTS = 10_000
_SCALE = TOKENS_PER_PRICE * WHOLE_BASIS_POINTS


class Rates(msgspec.Struct, frozen=True):
    """The prices of one model for one tenant, in nanos per million tokens.

    Cached input never costs more than other input.
    """

    input_nanos: int = 0
    cached_input_nanos: int = 0
    output_nanos: int = 0
    basis_points: int = 0
    """The discount on the prices, in hundredths of a per cent."""


class Cost(msgspec.Struct, frozen=True):
    """The cost of tokens in nanos. total = input + cached + output, less the discount."""

    input: int
    cached: int
    output: int
    total: int
    """The sum of the three, less the discount."""
    listed: int
    """The total before the discount."""


def cost(rates: Rates, uncached_tokens: int, cached_tokens: int, output_tokens: int) -> Cost:
    """Return the cost of a row of usage, rounded once, half up.

    The cost of each kind of tokens is the growth of the rounded running sum when that kind is added.
    """
    part = WHOLE_BASIS_POINTS - rates.basis_points
    uncached = uncached_tokens * rates.input_nanos
    cached = cached_tokens * rates.cached_input_nanos
    whole = uncached + cached + output_tokens * rates.output_nanos
    first, second, total = (_round(amount * part, _SCALE) for amount in (uncached, uncached + cached, whole))
    return Cost(first, second - first, total - second, total, _round(whole, TOKENS_PER_PRICE))


def _round(amount: int, scale: int) -> int:
    """Return amount / scale as the nearest integer, rounded half up; amount >= 0."""
    return (2 * amount + scale) // (2 * scale)
