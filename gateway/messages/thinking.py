"""The signature by which a client sends a model's thinking back.

A signature is GCM's tag over the text under the project's key: a text that was changed, or comes from another project
or another server, is refused.
"""

from __future__ import annotations

import base64
import binascii
import hashlib

import msgspec

from gateway.domain.errors import InvalidRequest
from gateway.support.cipher import Cipher, Place, Sealed


class Signatures:
    """Signs thinking, and checks what clients send back. One per gateway process."""

    def __init__(self, cipher: Cipher) -> None:
        self._cipher = cipher

    def sign(self, project_id: str, thinking: str) -> str:
        """Return the signature of a project's thinking."""
        sealed = self._cipher.seal(b"", _place(project_id, thinking))
        return base64.b64encode(msgspec.msgpack.encode(sealed)).decode()

    def check(self, project_id: str, thinking: str, signature: str, path: str) -> None:
        """Check a signature.

        Raises InvalidRequest: for one that this installation did not make for this text.
        """
        try:
            sealed = msgspec.msgpack.decode(base64.b64decode(signature, validate=True), type=Sealed)
        except (binascii.Error, ValueError, msgspec.DecodeError):
            sealed = None
        if sealed is None or self._cipher.open_from_client(sealed, _place(project_id, thinking)) is None:
            raise InvalidRequest(
                f"'{path}' is no signature of this thinking. Send thinking back as it came, or leave it out.",
                param=path,
                code="invalid_signature",
            )


def _place(project_id: str, thinking: str) -> Place:
    digest = hashlib.sha256(thinking.encode(errors="surrogatepass")).hexdigest()
    return Place(project_id, "messages.thinking", digest)
