"""`encrypted_content`: content for a client to keep, which nobody else can read, change or move.

AES-256-GCM under the project's key, with the kind of item and the base model as associated data. Content of another
project, of another kind, for another base, cut or edited is refused, always with the same error. A client may send
content twice, or to another of its users: that is the client's own affair.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from typing import Literal

import msgspec

from gateway.domain.errors import InvalidRequest
from gateway.support.cipher import Cipher, Place, Sealed

MAX_SEALED_CHARS = 20 << 20
MAX_CONTENT_BYTES = 8 << 20
"""The most characters of sealed content that are decoded, and the most bytes of the decoded content."""

VERSION = b"\x01"

Kind = Literal["compaction", "reasoning"]


class SealedItems:
    """Seals and opens content for clients. A gateway process has one."""

    def __init__(self, cipher: Cipher) -> None:
        self._cipher = cipher

    def seal(self, content: str, project_id: str, base: str, kind: Kind) -> str:
        """Return content sealed for a project and a base model. The same content is always sealed to the same bytes."""
        compressed = zlib.compress(content.encode(errors="replace"))
        sealed = self._cipher.seal(compressed, _place(project_id, base, kind), is_repeatable=True)
        return base64.b64encode(VERSION + msgspec.msgpack.encode(sealed)).decode()

    def open(self, encrypted: str, project_id: str, base: str, kind: Kind, path: str) -> str:
        """Return sealed content in the clear. path: the path of the content, for the refusal.

        Raises InvalidRequest: when the content was not sealed here for this project, kind and base; the words are
        always the same.
        """
        found = self._decrypted(encrypted, _place(project_id, base, kind))
        if found is None:
            raise InvalidRequest(
                f"'{path}' could not be verified: it was not made by this server for this project and this base model, "
                "or was changed since.",
                param=path,
                code="invalid_encrypted_content",
            )
        return found

    def _decrypted(self, encrypted: str, place: Place) -> str | None:
        if len(encrypted) > MAX_SEALED_CHARS:
            return None
        try:
            raw = base64.b64decode(encrypted, validate=True)
            if not raw.startswith(VERSION) or base64.b64encode(raw) != encrypted.encode():  # else of another form
                return None
            sealed = msgspec.msgpack.decode(raw[len(VERSION) :], type=Sealed)
        except (binascii.Error, ValueError, msgspec.DecodeError):
            return None
        content = self._cipher.open_from_client(sealed, place)
        if content is None:
            return None
        inflating = zlib.decompressobj()
        try:
            data = inflating.decompress(content, MAX_CONTENT_BYTES)
        except zlib.error:
            return None
        return data.decode() if inflating.eof else None


def _place(project_id: str, base: str, kind: Kind) -> Place:
    return Place(project_id, f"responses.{kind}", base)
