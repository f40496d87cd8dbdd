"""Ids as the API shows them: a prefix that says what it is, then 120 random bits in lower-case base32."""

from __future__ import annotations

import base64
import secrets

_RANDOM_BYTES = 15
ID_CHARS = 24
"""Characters of an id after its prefix."""


def new_id(prefix: str) -> str:
    """E.g. `proj_` and 24 characters."""
    return f"{prefix}_{base64.b32encode(secrets.token_bytes(_RANDOM_BYTES)).decode().lower()}"
