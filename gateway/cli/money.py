"""Amounts of the currency on the command line: decimals for people, nanos for the server."""

from __future__ import annotations

import argparse
import datetime
from decimal import Decimal, InvalidOperation

NANOS = 10**9
MAX_NANOS = 10**18


def nanos(text: str) -> int:
    """An argument's type: an amount such as 12.50 with at most nine decimals."""
    try:
        amount = Decimal(text)
    except InvalidOperation:
        amount = Decimal(-1)
    if not amount.is_finite() or not 0 <= amount * NANOS <= MAX_NANOS or amount * NANOS != int(amount * NANOS):
        raise argparse.ArgumentTypeError(f"must be an amount such as 12.50, not {text!r}")
    return int(amount * NANOS)


def instant(text: str) -> int:
    """An argument's type: a day or a time in UTC as Unix seconds."""
    try:
        time = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a date or a time such as 2026-12-01, not {text!r}") from None
    return int((time if time.tzinfo else time.replace(tzinfo=datetime.UTC)).timestamp())
