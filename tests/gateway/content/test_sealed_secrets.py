"""Secrets that gateways have to read are encrypted in the database, also those that earlier versions stored in
clear."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from gateway.content.keeper import Keeper
from gateway.content.resealing import reseal
from gateway.db.content.secrets import secrets_of_other_keys
from gateway.db.organization.organizations import ensure_organization
from gateway.db.pool import Database
from gateway.domain.content.keys import ContentKey, SecretColumn
from gateway.domain.errors import ContentUnreadable
from gateway.support.cipher import Cipher
from gateway.support.secrets import Secrets
from tests.gateway.admin_server import PASSWORD, serve_admin

OLD, NEW = (ContentKey(letter * 32) for letter in (b"o", b"n"))
CLEAR: dict[SecretColumn, bytes] = {
    "users.totp_secret": b"the-seed-of-an-authenticator",
    "webhooks.secret": b"the-secret-of-a-webhook",
    "deliveries.secret": b"the-key-of-an-object-store",
}


async def organization_with_clear_secrets(database: Database) -> str:
    """Write each secret in clear, as earlier versions did; return the organization's id."""
    async with database.acquire() as conn:
        organization = await ensure_organization(conn, "default")
        await conn.execute(
            "INSERT INTO users (id, organization_id, email, name, totp_secret, totp_confirmed_at)"
            " VALUES ('user_1', $1, 'ann@example.com', 'Ann', $2, now())",
            organization.id,
            CLEAR["users.totp_secret"],
        )
        await conn.execute(
            "INSERT INTO webhooks (id, organization_id, url, secret) VALUES ('wh_1', $1, 'https://example.com', $2)",
            organization.id,
            CLEAR["webhooks.secret"],
        )
        await conn.execute(
            "INSERT INTO deliveries"
            " (id, organization_id, name, kind, format, schedule, destination, secret, from_period)"
            " VALUES ('dlv_1', $1, 'finance', 'usage', 'jsonl', 'daily', '{}', $2, '2026-01-01')",
            organization.id,
            CLEAR["deliveries.secret"],
        )
    return organization.id


async def stored_secrets(database: Database) -> dict[SecretColumn, bytes]:
    """Return the stored bytes of each secret, by its column."""
    async with database.acquire() as conn:
        return {row.column: row.secret for row in await secrets_of_other_keys(conn, "")}


async def open_secrets(database: Database, secrets: Secrets) -> dict[SecretColumn, bytes]:
    async with database.acquire() as conn:
        rows = await secrets_of_other_keys(conn, "")
    return {
        row.column: secrets.open(row.content_key, row.secret, row.column, row.organization_id, row.owner)
        for row in rows
    }


async def test_secrets_from_before_are_sealed_at_the_start_and_follow_the_key(database: Database) -> None:
    await organization_with_clear_secrets(database)
    assert await stored_secrets(database) == CLEAR
    await Keeper(database, Cipher([OLD])).work()
    sealed = await stored_secrets(database)
    assert all(CLEAR[column] not in data for column, data in sealed.items())
    assert await open_secrets(database, Secrets(Cipher([OLD]))) == CLEAR
    await Keeper(database, Cipher([NEW, OLD])).work()
    assert await open_secrets(database, Secrets(Cipher([NEW]))) == CLEAR, "the old key can be dropped"
    assert await reseal(database, Secrets(Cipher([NEW, OLD]))) == 0


async def test_a_secret_whose_key_is_missing_is_left_as_it_is(database: Database) -> None:
    await organization_with_clear_secrets(database)
    assert await reseal(database, Secrets(Cipher([OLD]))) == 3
    before = await stored_secrets(database)
    assert await reseal(database, Secrets(Cipher([NEW]))) == 0
    assert await stored_secrets(database) == before
    with pytest.raises(ContentUnreadable):
        await open_secrets(database, Secrets(Cipher([NEW])))


async def test_a_secret_that_is_moved_to_another_row_is_refused(database: Database) -> None:
    secrets = Secrets(Cipher([OLD]))
    sealed = secrets.seal(b"secret", "webhooks.secret", "org_1", "wh_1")
    for place in [("org_1", "wh_2"), ("org_2", "wh_1")]:
        with pytest.raises(ContentUnreadable):
            secrets.open(sealed.key_id, sealed.data, "webhooks.secret", *place)
    with pytest.raises(ContentUnreadable):
        secrets.open(sealed.key_id, sealed.data, "deliveries.secret", "org_1", "wh_1")


async def test_secrets_stored_through_the_admin_api_are_in_no_column_in_clear(
    database: Database, tmp_path: Path
) -> None:
    async with serve_admin(database, tmp_path) as server:
        user = await server.user("ann@example.com", "owner")
        async with server.client(server.operator_key) as operator:
            hook = (await operator.post("/webhooks", json={"url": "https://example.com/hook"})).json()
        async with server.person("ann@example.com") as ann:
            begun = (await ann.post(f"{server.url}/admin/v1/totp", json={"password": PASSWORD})).json()
    async with database.acquire() as conn:
        seed = await conn.fetchval("SELECT totp_secret FROM users WHERE id = $1", user["id"])
        secret = await conn.fetchval("SELECT secret FROM webhooks WHERE id = $1", hook["id"])
    assert base64.b32decode(begun["secret"]) not in seed
    assert base64.b64decode(hook["secret"].removeprefix("whsec_")) not in secret
