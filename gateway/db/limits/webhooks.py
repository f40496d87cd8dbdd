"""Webhooks of an organization, and the messages that wait to be delivered to them."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import msgspec

from gateway.db.ids import new_id

if TYPE_CHECKING:
    from gateway.db.pool import Connection

MAX_ATTEMPTS = 46
"""Attempts at one message, over three days.

Statements contain the number itself, as the index of due messages does: PostgreSQL uses the index only then.
"""
FIRST_DELAY = datetime.timedelta(seconds=15)
"""The time before the second attempt, longer than an attempt takes: no message is sent by two gateways at once."""
LONGEST_DELAY = datetime.timedelta(hours=2)
RETENTION = datetime.timedelta(days=7)
"""The time after which messages are deleted that were delivered or given up."""


DEFAULT_EVENTS = ("limit.threshold_reached", "experiment.paused")
"""The events that a webhook is called for unless others are asked for."""


class WebhookRow(msgspec.Struct, frozen=True):
    """A webhook and its last attempts."""

    id: str
    organization_id: str
    url: str
    created_at: datetime.datetime
    last_delivered_at: datetime.datetime | None
    last_failed_at: datetime.datetime | None
    last_error: str | None
    """The error of the attempt at last_failed_at, which a delivery may have followed."""
    events: list[str]
    """The events that the webhook is called for."""


class Delivery(msgspec.Struct, frozen=True):
    """A message that is due to be sent to a webhook."""

    id: str
    webhook_id: str
    organization_id: str
    url: str
    content_key: str | None
    """The id of the content key that encrypted the secret; None: the secret is in clear."""
    secret: bytes
    former_content_key: str | None
    """The id of the content key of the secret before the last rotation; None where that is over."""
    former_secret: bytes | None
    """The secret before the last rotation, as long as messages are signed with it as well; None: no longer."""
    body: str
    attempts: int
    """The number of attempts so far."""
    now_s: int
    """The database's time in Unix seconds."""


_CREATE = """
    INSERT INTO webhooks (id, organization_id, url, content_key, secret, events) VALUES ($1, $2, $3, $4, $5, $6)
    RETURNING id, organization_id, url, created_at, last_delivered_at, last_failed_at, last_error, events
"""


def new_webhook_id() -> str:
    """Return the id of a new webhook."""
    return new_id("wh")


async def create_webhook(
    conn: Connection,
    webhook_id: str,
    organization_id: str,
    url: str,
    *,
    content_key: str | None,
    secret: bytes,
    events: Sequence[str] = DEFAULT_EVENTS,
) -> WebhookRow:
    """Make a webhook. events: the events that it is called for.

    secret: encrypted with the content key of this id; in clear where that is None.
    """
    row = await conn.fetchrow(_CREATE, webhook_id, organization_id, url, content_key, secret, list(events))
    assert row is not None
    return WebhookRow(**row)


_LIST = """
    SELECT id, organization_id, url, created_at, last_delivered_at, last_failed_at, last_error, events FROM webhooks
    WHERE organization_id = $1
      AND ($2::text IS NULL OR (created_at, id) > (SELECT created_at, id FROM webhooks
                                                   WHERE organization_id = $1 AND id = $2))
    ORDER BY created_at, id LIMIT $3
"""


async def list_webhooks(
    conn: Connection, organization_id: str, *, after: str | None = None, limit: int = 100
) -> list[WebhookRow]:
    """Return webhooks, oldest first, those that follow the webhook with id `after`."""
    return [WebhookRow(**row) for row in await conn.fetch(_LIST, organization_id, after, limit)]


_REMOVE = """
    DELETE FROM webhooks WHERE organization_id = $1 AND id = $2
    RETURNING id, organization_id, url, created_at, last_delivered_at, last_failed_at, last_error, events
"""


async def remove_webhook(conn: Connection, organization_id: str, webhook_id: str) -> WebhookRow | None:
    """Delete a webhook and return it, None if there was none. Messages that waited for it are forgotten."""
    row = await conn.fetchrow(_REMOVE, organization_id, webhook_id)
    return WebhookRow(**row) if row else None


class SealedSecret(msgspec.Struct, frozen=True):
    """The secret of a webhook as it lies in the table."""

    content_key: str | None
    """The id of the content key that encrypted the secret; None: the secret is in clear."""
    secret: bytes


_LOCK_SECRET = "SELECT content_key, secret FROM webhooks WHERE organization_id = $1 AND id = $2 FOR UPDATE"  # noqa: S105


async def lock_secret(conn: Connection, organization_id: str, webhook_id: str) -> SealedSecret | None:
    """Lock the secret of a webhook until the transaction ends, and return it; None if there is no such webhook."""
    row = await conn.fetchrow(_LOCK_SECRET, organization_id, webhook_id)
    return SealedSecret(**row) if row else None


_ROTATE = """
    UPDATE webhooks SET content_key = $3, secret = $4, former_content_key = $5, former_secret = $6,
        former_until = CASE WHEN $6::bytea IS NOT NULL THEN clock_timestamp() + $7::interval END
    WHERE organization_id = $1 AND id = $2
    RETURNING id, organization_id, url, created_at, last_delivered_at, last_failed_at, last_error, events, former_until
"""


async def rotate_secret(
    conn: Connection,
    organization_id: str,
    webhook_id: str,
    secret: SealedSecret,
    former: SealedSecret | None,
    grace: datetime.timedelta,
) -> tuple[WebhookRow, datetime.datetime | None]:
    """Replace the secret of a webhook, which has to exist.

    former: the secret that signs as well for the time `grace`; None: none does.

    Return the webhook, and the instant at which the former secret no longer signs.
    """
    row = await conn.fetchrow(
        _ROTATE,
        organization_id,
        webhook_id,
        secret.content_key,
        secret.secret,
        former.content_key if former else None,
        former.secret if former else None,
        grace,
    )
    assert row is not None
    fields = dict(row)
    until = fields.pop("former_until")
    return WebhookRow(**fields), until


# An event is claimed by moving its time into the future: should this gateway die, another one sends it then. One event
# of each webhook is claimed, so that a slow receiver gets no second one. The conditions are there twice: an event that
# another gateway claimed meanwhile is checked again, and is not due any more.
_CLAIM = """
    UPDATE webhook_deliveries d
    SET attempts = d.attempts + 1, due_at = clock_timestamp() + least($3::interval, $2::interval * 2 ^ d.attempts)
    FROM webhooks w
    WHERE w.id = d.webhook_id AND d.id IN (
        SELECT id FROM webhook_deliveries
        WHERE delivered_at IS NULL AND attempts < 46 AND due_at <= clock_timestamp() AND id IN (
            SELECT DISTINCT ON (webhook_id) id FROM webhook_deliveries
            WHERE delivered_at IS NULL AND attempts < 46 AND due_at <= clock_timestamp() AND webhook_id <> ALL ($4)
            ORDER BY webhook_id, due_at)
        ORDER BY due_at LIMIT $1 FOR UPDATE SKIP LOCKED)
    RETURNING d.id, d.webhook_id, w.organization_id, w.url, w.content_key, w.secret, w.former_content_key,
              CASE WHEN w.former_until > clock_timestamp() THEN w.former_secret END AS former_secret,
              d.body, d.attempts, extract(epoch FROM clock_timestamp())::bigint AS now_s
"""


async def claim_deliveries(
    conn: Connection, count: int, *, busy: Collection[str] = (), first_delay: datetime.timedelta = FIRST_DELAY
) -> list[Delivery]:
    """Claim up to count of the deliveries that are due, one of each webhook that is not busy.

    A delivery is this caller's alone until it is due again: after first_delay, which doubles with each attempt.
    """
    rows = await conn.fetch(_CLAIM, count, first_delay, LONGEST_DELAY, list(busy))
    return [Delivery(**row) for row in rows]


_DELIVERED = """
    WITH taken AS (
        UPDATE webhook_deliveries SET delivered_at = clock_timestamp(), last_error = NULL WHERE id = $1
        RETURNING webhook_id, delivered_at)
    UPDATE webhooks w SET last_delivered_at = t.delivered_at FROM taken t WHERE w.id = t.webhook_id
"""
_FAILED = """
    WITH missed AS (
        UPDATE webhook_deliveries SET last_error = $2 WHERE id = $1 AND delivered_at IS NULL RETURNING webhook_id)
    UPDATE webhooks w SET last_failed_at = clock_timestamp(), last_error = $2 FROM missed m WHERE w.id = m.webhook_id
"""


async def note_delivered(conn: Connection, delivery_id: str) -> None:
    """Record that a message was delivered."""
    await conn.execute(_DELIVERED, delivery_id)


async def note_failed(conn: Connection, delivery_id: str, error: str) -> None:
    """Record why a message could not be delivered."""
    await conn.execute(_FAILED, delivery_id, error)


_FORGET_DELIVERIES = """
    DELETE FROM webhook_deliveries
    WHERE delivered_at < clock_timestamp() - $1::interval
       OR (attempts >= 46 AND due_at < clock_timestamp() - $1::interval)
"""
_FORGET_SECRETS = """
    UPDATE webhooks SET former_secret = NULL, former_content_key = NULL, former_until = NULL
    WHERE former_until < clock_timestamp()
"""
# Usage may yet come to a window that is over, and must not be announced twice.
_FORGET_ALERTS = """
    DELETE FROM limit_alerts a USING limits l
    WHERE l.id = a.limit_id AND a.window_start < clock_timestamp() -
        CASE l.period WHEN 'minute' THEN interval '1 hour' WHEN 'day' THEN interval '3 days' ELSE interval '70 days' END
"""


async def clean_up(conn: Connection) -> None:
    """Delete messages that were delivered or given up long ago, and records of alerts in windows long past.

    Secrets that no longer sign are deleted as well.
    """
    await conn.execute(_FORGET_DELIVERIES, RETENTION)
    await conn.execute(_FORGET_SECRETS)
    await conn.execute(_FORGET_ALERTS)
