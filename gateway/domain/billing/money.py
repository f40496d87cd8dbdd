"""Money as people write it: nanos as an exact decimal of the currency."""

from __future__ import annotations

NANOS = 10**9
DECIMALS = 9
DEFAULT_CURRENCY = "usd"
"""The currency of amounts where no prices were ever set: all amounts are 0."""

MAX_NANOS = 10**17
"""The largest credit or adjustment: a hundred million units, a hundredth of what the ledger's integers can hold."""


def decimal_text(nanos: int, min_decimals: int = 2) -> str:
    """Return an amount as text such as 12.50 or -0.000000001: exact, with at least so many decimals."""
    units, rest = divmod(abs(nanos), NANOS)
    fraction = f"{rest:0{DECIMALS}d}".rstrip("0").ljust(min_decimals, "0")
    return f"{'-' if nanos < 0 else ''}{units}{'.' if fraction else ''}{fraction}"


def to_number(nanos: int) -> float:
    """Return an amount in the currency as the nearest JSON number, for OpenAI's shapes, which show no nanos."""
    return nanos / NANOS
