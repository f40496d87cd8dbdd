"""A device with passkeys, after WebAuthn level 3: makes key pairs, and signs what browsers tell it about a page."""

from __future__ import annotations

import base64
import hashlib
import os
from typing import Any

import cbor2
import msgspec
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256

from tests.gateway.admin_server import PARTY

USER_PRESENT, USER_VERIFIED, HAS_KEY = 1, 4, 64


class Device:
    """A virtual authenticator with one passkey, and the browser in front of it. Tests change fields to make it lie.

    flags: the flags of the device's replies, such as that the user was verified.
    counter: the number of the last signature.
    """

    def __init__(self) -> None:
        self.id = os.urandom(16)
        self.origin, self.rp_id = PARTY.origin, PARTY.id
        self.flags = USER_PRESENT | USER_VERIFIED
        self.counter = 0
        self.user_handle = b""
        self._key = ec.generate_private_key(ec.SECP256R1())

    def make(self, asked: dict[str, Any], name: str = "laptop") -> dict[str, Any]:
        """Return the body that adds this passkey. asked: what the server answered."""
        self.user_handle = base64.b64decode(asked["user_handle"])
        numbers = self._key.public_key().public_numbers()
        cose = {1: 2, 3: -7, -1: 1, -2: numbers.x.to_bytes(32), -3: numbers.y.to_bytes(32)}
        credential = bytes(16) + len(self.id).to_bytes(2) + self.id + cbor2.dumps(cose)
        data = self._data(self.flags | HAS_KEY) + credential
        return {
            "name": name,
            "credential_id": _base64(self.id),
            "client_data": _base64(self._client_data("webauthn.create", asked["challenge"])),
            "attestation": _base64(cbor2.dumps({"fmt": "none", "attStmt": {}, "authData": data})),
        }

    def sign(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Return the body that logs in by this passkey."""
        self.counter += 1
        data, client_data = self._data(self.flags), self._client_data("webauthn.get", asked["challenge"])
        signature = self._key.sign(data + hashlib.sha256(client_data).digest(), ec.ECDSA(SHA256()))
        return {
            "credential_id": _base64(self.id),
            "client_data": _base64(client_data),
            "authenticator_data": _base64(data),
            "signature": _base64(signature),
            "user_handle": _base64(self.user_handle) if self.user_handle else None,
        }

    def _data(self, flags: int) -> bytes:
        return hashlib.sha256(self.rp_id.encode()).digest() + bytes([flags]) + self.counter.to_bytes(4)

    def _client_data(self, kind: str, challenge: str) -> bytes:
        text = base64.urlsafe_b64encode(base64.b64decode(challenge)).decode().rstrip("=")
        return msgspec.json.encode({"type": kind, "challenge": text, "origin": self.origin, "crossOrigin": False})


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
