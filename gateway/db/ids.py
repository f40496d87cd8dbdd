"""Ids as the API shows them: a prefix that says what it is, then 120 random bits in lower-case base32 (RFC 4648)."""

from __future__ import annotations

import secrets
from itertools import product

_RANDOM_BYTES = 15
ID_CHARS = 24
"""Characters of an id after its prefix."""

_PAIRS = ["".join(pair) for pair in product("abcdefghijklmnopqrstuvwxyz234567", repeat=2)]
_SHIFTS = range(8 * _RANDOM_BYTES - 10, -1, -10)


def new_id(prefix: str) -> str:
    """Return a new id, e.g. `proj_` and 24 characters."""
    bits = int.from_bytes(secrets.token_bytes(_RANDOM_BYTES), "big")
    return f"{prefix}_{''.join([_PAIRS[bits >> shift & 1023] for shift in _SHIFTS])}"
