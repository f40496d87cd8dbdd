"""The format of the keys that kept content is encrypted with. Pure: text in, keys out."""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import Literal

import msgspec

KEY_BYTES = 32

SecretColumn = Literal["users.totp_secret", "webhooks.secret", "webhooks.former_secret", "deliveries.secret"]
"""The name of a column of secrets that gateways need in the clear; its values are stored encrypted."""


class BadContentKey(ValueError):
    """The error for a text that is no content key; the message never shows the text."""


class ContentKey(msgspec.Struct, frozen=True):
    """A key of 256 random bits, which encrypts content."""

    secret: bytes

    @property
    def id(self) -> str:
        """The name of the key, which tells nothing about the secret."""
        return hashlib.sha256(b"lorikeet content key\0" + self.secret).hexdigest()[:16]


def parse_keys(text: str) -> tuple[ContentKey, ...]:
    """Parse keys in base64, separated by commas or white space.

    Raises BadContentKey: when a key is not 32 bytes in base64, or there is none.
    """
    keys = []
    for part in text.replace(",", " ").split():
        try:
            secret = base64.b64decode(part, validate=True)
        except binascii.Error:
            secret = b""
        if len(secret) != KEY_BYTES:
            raise BadContentKey("Expected 32 bytes in base64, such as `openssl rand -base64 32` prints")
        keys.append(ContentKey(secret))
    if not keys:
        raise BadContentKey("Expected a key, such as `openssl rand -base64 32` prints")
    return tuple(keys)
