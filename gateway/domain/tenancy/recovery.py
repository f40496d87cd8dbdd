"""Codes for people who have lost their authenticator: each replaces one of the authenticator's codes, once.

A code has 120 random bits, so its SHA-256 tells nothing about it.
"""

from __future__ import annotations

import base64
import hashlib
import secrets

NUM_CODES = 10
NUM_BYTES = 15
GROUP_CHARS = 4
MAX_CHARS = 40
"""The most characters of a code as people type it, with the signs between its groups."""


def new_codes() -> list[str]:
    """Return NUM_CODES new codes in the form in which they are shown: groups of letters and digits."""
    return [_in_groups(base64.b32encode(secrets.token_bytes(NUM_BYTES)).decode().lower()) for _ in range(NUM_CODES)]


def digest(code: str) -> bytes:
    """Return the SHA-256 of a code; case, spaces and the signs between its groups do not matter."""
    return hashlib.sha256("".join(filter(str.isalnum, code)).lower().encode()).digest()


def _in_groups(code: str) -> str:
    return "-".join(code[first : first + GROUP_CHARS] for first in range(0, len(code), GROUP_CHARS))
