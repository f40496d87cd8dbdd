"""Webhooks of an organization, and what waits to be delivered to them."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

import msgspec

from gateway.db.ids import new_id

if TYPE_CHECKING:
    from gateway.db.pool import Connection

MAX_ATTEMPTS = 46
"""Over three days."""
FIRST_DELAY = datetime.timedelta(seconds=5)
LONGEST_DELAY = datetime.timedelta(hours=2)
KEEP_DELIVERED = datetime.timedelta(days=7)


class WebhookRow(msgspec.Struct, frozen=True):
    id: str
    organization_id: str
    url: str
    created_at: datetime.datetime


class Delivery(msgspec.Struct, frozen=True):
    """One message to send now. now_s: the database's time, Unix seconds."""

    id: str
    url: str
    secret: bytes
    body: str
    attempts: int
    now_s: int


_CREATE = """
    INSERT INTO webhooks (id, organization_id, url, secret) VALUES ($1, $2, $3, $4)
    RETURNING id, organization_id, url, created_at
"""


async def create_webhook(conn: Connection, organization_id: str, url: str, secret: bytes) -> WebhookRow:
    row = await conn.fetchrow(_CREATE, new_id("wh"), organization_id, url, secret)
    assert row is not None
    return WebhookRow(**row)


_LIST = """
    SELECT id, organization_id, url, created_at FROM webhooks
    WHERE organization_id = $1
      AND ($2::text IS NULL OR (created_at, id) > (SELECT created_at, id FROM webhooks
                                                   WHERE organization_id = $1 AND id = $2))
    ORDER BY created_at, id LIMIT $3
"""


async def list_webhooks(
    conn: Connection, organization_id: str, *, after: str | None = None, limit: int = 100
) -> list[WebhookRow]:
    """Oldest first, those that follow the webhook with id `after`."""
    return [WebhookRow(**row) for row in await conn.fetch(_LIST, organization_id, after, limit)]


_REMOVE = """
    DELETE FROM webhooks WHERE organization_id = $1 AND id = $2 RETURNING id, organization_id, url, created_at
"""


async def remove_webhook(conn: Connection, organization_id: str, webhook_id: str) -> WebhookRow | None:
    """What it was, None if there was none; what waited for it is forgotten."""
    row = await conn.fetchrow(_REMOVE, organization_id, webhook_id)
    return WebhookRow(**row) if row else None


# Claimed by moving it into the future: should this gateway die, another one sends it then.
_CLAIM = """
    UPDATE webhook_deliveries d
    SET attempts = d.attempts + 1, due_at = clock_timestamp() + least($3::interval, $2::interval * 2 ^ d.attempts)
    FROM webhooks w
    WHERE w.id = d.webhook_id AND d.id IN (
        SELECT id FROM webhook_deliveries
        WHERE delivered_at IS NULL AND attempts < $4 AND due_at <= clock_timestamp()
        ORDER BY due_at LIMIT $1 FOR UPDATE SKIP LOCKED)
    RETURNING d.id, w.url, w.secret, d.body, d.attempts, extract(epoch FROM clock_timestamp())::bigint AS now_s
"""


async def claim_deliveries(
    conn: Connection, count: int, *, first_delay: datetime.timedelta = FIRST_DELAY
) -> list[Delivery]:
    """What is due, for this caller alone until it is due again, after a delay that doubles each time."""
    rows = await conn.fetch(_CLAIM, count, first_delay, LONGEST_DELAY, MAX_ATTEMPTS)
    return [Delivery(**row) for row in rows]


_DELIVERED = "UPDATE webhook_deliveries SET delivered_at = clock_timestamp(), last_error = NULL WHERE id = $1"
_FAILED = "UPDATE webhook_deliveries SET last_error = $2 WHERE id = $1 AND delivered_at IS NULL"
_CLEAN_UP = "DELETE FROM webhook_deliveries WHERE delivered_at < clock_timestamp() - $1::interval"


async def note_delivered(conn: Connection, delivery_id: str) -> None:
    await conn.execute(_DELIVERED, delivery_id)
    await conn.execute(_CLEAN_UP, KEEP_DELIVERED)


async def note_failed(conn: Connection, delivery_id: str, error: str) -> None:
    await conn.execute(_FAILED, delivery_id, error)
