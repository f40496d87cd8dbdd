"""Challenges that clients keep for this server: sealed for their holder, so that no row is needed to recognize them.

Knows neither what a challenge is for nor whether it was answered before.
"""

from __future__ import annotations

import hashlib

from gateway.support.cipher import Cipher, Place, Sealed

KEY_ID_BYTES = 8


class Challenges:
    """The sealer of challenges in a gateway process; all gateways of an installation open each other's."""

    def __init__(self, cipher: Cipher) -> None:
        self._cipher = cipher

    def seal(self, content: bytes, holder: str) -> bytes:
        """Return a challenge that nobody can guess or forge, for its holder alone."""
        sealed = self._cipher.seal(content, _place(holder))
        return bytes.fromhex(sealed.key_id) + sealed.data

    def open(self, challenge: bytes, holder: str) -> bytes | None:
        """Return the content of a challenge; None where it was not made for this holder."""
        sealed = Sealed(challenge[:KEY_ID_BYTES].hex(), challenge[KEY_ID_BYTES:])
        return self._cipher.open_from_client(sealed, _place(holder))


def _place(holder: str) -> Place:
    return Place("", "challenge", hashlib.sha256(holder.encode()).hexdigest())
