"""Amounts of the currency on the command line: decimals for people, nanos for the server."""

from __future__ import annotations

import argparse
import datetime
from decimal import Decimal

from gateway.domain.billing.money import MAX_NANOS, NANOS, decimal_text

PRICE_NANOS = (0, 10**15)
AMOUNT_NANOS = (1, MAX_NANOS)
"""(least, most) that the server takes of a price per million tokens, and of a credit or adjustment."""


def nanos_of(text: str, bounds: tuple[int, int]) -> int:
    """Return the nanos of an amount such as 12.50.

    Raises argparse.ArgumentTypeError: when the text is no amount within the bounds.
    """
    least, most = bounds
    try:
        number = Decimal(text) * NANOS
    except ArithmeticError:
        number = Decimal(-1)
    if not number.is_finite() or not least <= number <= most or number != int(number):
        raise argparse.ArgumentTypeError(
            f"must be an amount from {decimal_text(least, 0)} to {decimal_text(most, 0)} with at most nine decimals, "
            f"such as 12.50, not {text!r}"
        )
    return int(number)


def parse_price(text: str) -> int:
    """Parse an argument as nanos per million tokens."""
    return nanos_of(text, PRICE_NANOS)


def parse_amount(text: str) -> int:
    """Parse an argument as nanos of a credit or an adjustment."""
    return nanos_of(text, AMOUNT_NANOS)


def parse_instant(text: str) -> int:
    """Parse an argument, a day or a time in UTC, as Unix seconds."""
    try:
        time = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a date or a time such as 2026-12-01, not {text!r}") from None
    return int((time if time.tzinfo else time.replace(tzinfo=datetime.UTC)).timestamp())
