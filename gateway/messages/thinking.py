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
    """Signs thinking, and checks the thinking that clients send back. A gateway process has one."""

    def __init__(self, cipher: Cipher) -> None:
        self._cipher = cipher

    def sign(self, project_id: str, thinking: str) -> str:
        """Return the signature of a project's thinking."""
        sealed = self._cipher.seal(b"", _place(project_id, thinking))
        return base64.b64encode(msgspec.msgpack.encode(sealed)).decode()

    def sign_omitted(self, project_id: str, thinking: str) -> str:
        """Return the signature of thinking that is left out of a reply: it holds the thinking, sealed."""
        sealed = self._cipher.seal(thinking.encode(errors="replace"), _place_of_omitted(project_id))
        return base64.b64encode(msgspec.msgpack.encode(sealed)).decode()

    def check(self, project_id: str, thinking: str, signature: str, path: str) -> str:
        """Check a signature, and return the thinking, which the signature may hold itself.

        Raises InvalidRequest: for one that this installation did not make for this text.
        """
        try:
            raw = base64.b64decode(signature, validate=True)
            is_exact = base64.b64encode(raw) == signature.encode()  # the decoder takes more forms
            sealed = msgspec.msgpack.decode(raw, type=Sealed) if is_exact else None
        except (binascii.Error, ValueError, msgspec.DecodeError):
            sealed = None
        if sealed is not None and not thinking:
            found = self._cipher.open_from_client(sealed, _place_of_omitted(project_id))
            if found is not None:
                return found.decode()
        if sealed is None or self._cipher.open_from_client(sealed, _place(project_id, thinking)) is None:
            raise InvalidRequest(
                f"'{path}' is no signature of this thinking. Send thinking back as it came, or leave it out.",
                param=path,
                code="invalid_signature",
            )
        return thinking


def _place_of_omitted(project_id: str) -> Place:
    return Place(project_id, "messages.thinking", "omitted")


def _place(project_id: str, thinking: str) -> Place:
    digest = hashlib.sha256(thinking.encode(errors="surrogatepass")).hexdigest()
    return Place(project_id, "messages.thinking", digest)
