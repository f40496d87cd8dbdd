"""Ids as the API shows them: a prefix that says what it is, then 120 random bits in lower-case base32 (RFC 4648)."""

from __future__ import annotations

import secrets

ID_CHARS = 24
"""Characters of an id after its prefix."""

_CHAR_OF_BYTE = b"abcdefghijklmnopqrstuvwxyz234567" * 8
"""The character that five bits of a random byte stand for."""


def new_id(prefix: str) -> str:
    """Return a new id, e.g. `proj_` and 24 characters."""
    return f"{prefix}_{secrets.token_bytes(ID_CHARS).translate(_CHAR_OF_BYTE).decode()}"
