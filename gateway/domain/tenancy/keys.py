"""The format of API keys: how one is made, checked for typing errors, and reduced to what may be stored.

    sk-lk-<public: 12><secret: 40><checksum: 6>          a project's key
    sk-lk-admin-<public: 12><secret: 40><checksum: 6>    an operator's key

All three parts are base62. The public part identifies a key in lists and logs; the secret has 238 random bits, so a
plain SHA-256 of the whole key is a safe thing to store; the checksum (CRC-32 of all before it) turns typing errors and
guesses away without a look at the database. Knows nothing about who owns a key.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import string
import zlib
from typing import Literal

import msgspec

KeyKind = Literal["project", "admin"]

PREFIXES: dict[KeyKind, str] = {"project": "sk-lk-", "admin": "sk-lk-admin-"}

_ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
_PUBLIC_CHARS = 12
_SECRET_CHARS = 40
_CHECKSUM_CHARS = 6
_PATTERN = re.compile(
    rf"(sk-lk-(?:admin-)?)([0-9A-Za-z]{{{_PUBLIC_CHARS}}})[0-9A-Za-z]{{{_SECRET_CHARS}}}([0-9A-Za-z]{{{_CHECKSUM_CHARS}}})"
)


class NewKey(msgspec.Struct, frozen=True):
    """A key that was just made. It is shown once."""

    secret: str
    """The whole key."""
    public: str
    sha256: bytes

    def __repr__(self) -> str:
        return f"NewKey(public={self.public!r})"


class ParsedKey(msgspec.Struct, frozen=True):
    """The parts of a well-formed key that may be stored."""

    kind: KeyKind
    public: str
    """The prefix and the public part."""
    sha256: bytes


def new_key(kind: KeyKind = "project") -> NewKey:
    """Return a new random key, from the operating system's entropy."""
    public = PREFIXES[kind] + _random(_PUBLIC_CHARS)
    body = public + _random(_SECRET_CHARS)
    secret = body + _checksum(body)
    return NewKey(secret, public, key_digest(secret))


def parse_key(text: str) -> ParsedKey | None:
    """Return the parts of a key, or None if its shape or its checksum is wrong."""
    match = _PATTERN.fullmatch(text)
    if match is None or match[3] != _checksum(text[:-_CHECKSUM_CHARS]):
        return None
    kind: KeyKind = "admin" if match[1] == PREFIXES["admin"] else "project"
    return ParsedKey(kind, match[1] + match[2], key_digest(text))


def key_digest(text: str) -> bytes:
    """Return the digest by which a whole key is known."""
    return hashlib.sha256(text.encode()).digest()


def _random(num_chars: int) -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(num_chars))


def _checksum(body: str) -> str:
    """Return the CRC-32 in base62, most significant digit first: 62**6 > 2**32."""
    rest = zlib.crc32(body.encode())
    digits = ""
    for _ in range(_CHECKSUM_CHARS):
        rest, digit = divmod(rest, len(_ALPHABET))
        digits = _ALPHABET[digit] + digits
    return digits
