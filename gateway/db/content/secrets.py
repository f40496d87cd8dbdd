"""Sealed secrets of all tables, read and written only to encrypt them with another content key."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gateway.domain.content.keys import SecretColumn

if TYPE_CHECKING:
    from gateway.db.pool import Connection


class SecretRow(msgspec.Struct, frozen=True):
    """A secret of the operator's side, with the column and the row that hold it."""

    column: SecretColumn
    id: str
    organization_id: str
    owner: str
    """The id of the owner that the secret is sealed for, beside its organization."""
    content_key: str | None
    """The id of the content key that encrypted the secret; None: the secret is in clear."""
    secret: bytes


_OF_OTHER_KEYS = """
    SELECT 'users.totp_secret' AS column, id, organization_id, id AS owner, totp_content_key AS content_key,
           totp_secret AS secret
    FROM users WHERE totp_secret IS NOT NULL AND totp_content_key IS DISTINCT FROM $1
    UNION ALL
    SELECT 'webhooks.secret', id, organization_id, id, content_key, secret
    FROM webhooks WHERE content_key IS DISTINCT FROM $1
    UNION ALL
    SELECT 'webhooks.former_secret', id, organization_id, id, former_content_key, former_secret
    FROM webhooks WHERE former_secret IS NOT NULL AND former_content_key IS DISTINCT FROM $1
    UNION ALL
    SELECT 'deliveries.secret', id, organization_id, name, content_key, secret
    FROM deliveries WHERE secret IS NOT NULL AND content_key IS DISTINCT FROM $1
"""


async def secrets_of_other_keys(conn: Connection, content_key: str) -> list[SecretRow]:
    """Return all secrets that are in clear, or encrypted with another key than that of this id."""
    return [SecretRow(**row) for row in await conn.fetch(_OF_OTHER_KEYS, content_key)]


_REPLACE_SEED = """
    UPDATE users SET totp_secret = $3, totp_content_key = $4 WHERE id = $1 AND totp_secret = $2
"""
_REPLACE_OF_WEBHOOK = "UPDATE webhooks SET secret = $3, content_key = $4 WHERE id = $1 AND secret = $2"
_REPLACE_FORMER = "UPDATE webhooks SET former_secret = $3, former_content_key = $4 WHERE id = $1 AND former_secret = $2"
_REPLACE_OF_DELIVERY = "UPDATE deliveries SET secret = $3, content_key = $4 WHERE id = $1 AND secret = $2"


async def replace_secret(conn: Connection, row: SecretRow, content_key: str, secret: bytes) -> None:
    """Replace a secret by the same secret under another key, unless it was changed since it was read."""
    match row.column:
        case "users.totp_secret":
            await conn.execute(_REPLACE_SEED, row.id, row.secret, secret, content_key)
        case "webhooks.secret":
            await conn.execute(_REPLACE_OF_WEBHOOK, row.id, row.secret, secret, content_key)
        case "webhooks.former_secret":
            await conn.execute(_REPLACE_FORMER, row.id, row.secret, secret, content_key)
        case "deliveries.secret":
            await conn.execute(_REPLACE_OF_DELIVERY, row.id, row.secret, secret, content_key)
