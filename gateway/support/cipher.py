"""Encrypts and authenticates kept content: AES-256-GCM (NIST SP 800-38D) under a key per project.

Keys are derived from the gateway's with HKDF (RFC 5869), so that the bound of random nonces is each project's own. The
place of a row, project and table and id, is associated data: content that was moved or swapped is refused. Knows
nothing about the content's storage.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Mapping, Sequence

import msgspec
import structlog
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from gateway.domain.content.keys import ContentKey
from gateway.domain.errors import ContentUnreadable

log = structlog.get_logger(__name__)

NONCE_BYTES = 12
TAG_BYTES = 16


class Sealed(msgspec.Struct, frozen=True):
    """Encrypted content."""

    key_id: str
    """The id of the key that encrypts the content."""
    data: bytes
    """The nonce, the ciphertext and GCM's tag."""


class Place(msgspec.Struct, frozen=True):
    """The place of stored content, which encryption binds it to."""

    project_id: str
    name: str
    """The table and, where it has several such columns, the column."""
    id: str
    """The id of the row within the project."""

    @property
    def associated_data(self) -> bytes:
        """The place as bytes, which the encryption authenticates."""
        return msgspec.msgpack.encode(self)


class Cipher:
    """Encryption and decryption of content. keys: the first one encrypts, all decrypt."""

    def __init__(self, keys: Sequence[ContentKey]) -> None:
        self._keys = {key.id: key for key in keys}
        self._first = keys[0]

    @property
    def key_id(self) -> str:
        """The id of the key that encrypts."""
        return self._first.id

    @property
    def key_ids(self) -> list[str]:
        """The ids of all keys that decrypt."""
        return list(self._keys)

    def seal(self, content: bytes, place: Place, *, key_id: str | None = None, is_repeatable: bool = False) -> Sealed:
        """Return content encrypted for its place.

        key_id: the id of the key to encrypt with; None: the first one.
        is_repeatable: True: equal content at one place gives equal bytes, by a nonce that is a keyed digest of both.
        """
        key = self._keys[key_id or self._first.id]
        nonce = os.urandom(NONCE_BYTES)
        if is_repeatable:
            whole = msgspec.msgpack.encode((place.associated_data, content))
            nonce = hmac.digest(_derive_key(key, b"nonces", place.project_id), whole, "sha256")[:NONCE_BYTES]
        cipher = AESGCM(_derive_key(key, b"content", place.project_id))
        return Sealed(key.id, nonce + cipher.encrypt(nonce, content, place.associated_data))

    def open(self, sealed: Sealed, place: Place) -> bytes:
        """Return decrypted content.

        Raises ContentUnreadable: when the key is missing, or has not encrypted this content for this place; logs why.
        """
        key = self._keys.get(sealed.key_id)
        if key is None:
            raise _unreadable(sealed, place, "this gateway does not have the key")
        nonce, data = sealed.data[:NONCE_BYTES], memoryview(sealed.data)[NONCE_BYTES:]
        try:
            return AESGCM(_derive_key(key, b"content", place.project_id)).decrypt(nonce, data, place.associated_data)
        except (InvalidTag, ValueError):  # ValueError: cut off
            raise _unreadable(sealed, place, "the key has encrypted no such content for this place") from None

    def open_from_client(self, sealed: Sealed, place: Place) -> bytes | None:
        """Return decrypted content that a client was given to keep.

        Return None where no key has encrypted it for this place, which is the client's fault and not logged.
        """
        key = self._keys.get(sealed.key_id)
        if key is None:
            return None
        nonce, data = sealed.data[:NONCE_BYTES], memoryview(sealed.data)[NONCE_BYTES:]
        try:
            return AESGCM(_derive_key(key, b"content", place.project_id)).decrypt(nonce, data, place.associated_data)
        except (InvalidTag, ValueError):
            return None

    def tags(self, metadata: Mapping[str, str], project_id: str, key_id: str | None = None) -> list[bytes]:
        """Return a keyed digest of each key-value pair, by which equal pairs of a project are found without being read.

        key_id: the id of the key to make the digests with; None: the key that encrypts.
        """
        key = _derive_key(self._keys[key_id or self._first.id], b"tags", project_id)
        pairs = (msgspec.msgpack.encode(pair) for pair in sorted(metadata.items()))
        return [hmac.digest(key, pair, "sha256")[:TAG_BYTES] for pair in pairs]


def _unreadable(sealed: Sealed, place: Place, why: str) -> ContentUnreadable:
    log.error("content_unreadable", key=sealed.key_id, project_id=place.project_id, what=place.name, error=why)
    return ContentUnreadable()


def _derive_key(key: ContentKey, purpose: bytes, project_id: str) -> bytes:
    info = b"lorikeet " + purpose + b"\0" + project_id.encode()
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=info).derive(key.secret)
