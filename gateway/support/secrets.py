"""Secrets of the operator's side that gateways need in the clear, sealed for their places.

These are seeds of authenticators, secrets that sign webhooks, and keys of object stores. Knows neither the tables nor a
secret's use.
"""

from __future__ import annotations

from gateway.domain.content.keys import SecretColumn
from gateway.support.cipher import Cipher, Place, Sealed


class Secrets:
    """Encryption of secrets, bound to their rows. A gateway process has one."""

    def __init__(self, cipher: Cipher) -> None:
        self._cipher = cipher

    @property
    def key_id(self) -> str:
        """The id of the content key that encrypts."""
        return self._cipher.key_id

    def seal(self, secret: bytes, column: SecretColumn, organization_id: str, owner: str) -> Sealed:
        """Return a secret encrypted for its place.

        owner: the id of the row, or another value that is unique in the column within the organization and never
        changes.
        """
        return self._cipher.seal(secret, Place(organization_id, column, owner))

    def open(
        self, content_key: str | None, data: bytes, column: SecretColumn, organization_id: str, owner: str
    ) -> bytes:
        """Return a secret in clear.

        content_key: the id of the key that it was sealed with; None: the secret was not sealed.

        Raises ContentUnreadable: when this gateway lacks the key, or the secret was sealed for another column,
        organization or owner.
        """
        if content_key is None:
            return data
        return self._cipher.open(Sealed(content_key, data), Place(organization_id, column, owner))
