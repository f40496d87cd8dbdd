"""Webhooks are signed so that receivers can verify them, sent until they are accepted, and never sent to private
addresses."""

from __future__ import annotations

import asyncio
import base64
import datetime
import hashlib
import hmac
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress

from gateway.db.limits.limits import set_limit
from gateway.db.limits.webhooks import (
    FIRST_DELAY,
    MAX_ATTEMPTS,
    SealedSecret,
    WebhookRow,
    clean_up,
    create_webhook,
    list_webhooks,
    new_webhook_id,
    rotate_secret,
)
from gateway.db.organization.organizations import ensure_organization
from gateway.db.pool import Database
from gateway.domain.limits.limit import Limit
from gateway.webhooks.sender import TIMEOUT_S, WebhookSender, shown_secret, signature
from tests.gateway.admin_server import SECRETS
from tests.installation.waiting import until
from tests.patience import PATIENCE_S

SECRET = b"0123456789abcdef"
BODY = '{"type": "limit.threshold_reached"}'


class Receiver:
    """A web server that answers with each status in turn, the last one forever.

    got: headers and body of each request.
    """

    def __init__(self, statuses: list[int]) -> None:
        self.statuses = statuses
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.changed = asyncio.Event()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[1:-2]
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in head)}
        self.got.append((headers, await reader.readexactly(int(headers["content-length"]))))
        status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        writer.write(
            f"HTTP/1.1 {status} X\r\nlocation: /other\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".encode()
        )
        await writer.drain()
        writer.close()
        self.changed.set()

    async def wait_for(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while len(self.got) < count:
                await self.changed.wait()
                self.changed.clear()


async def queue_message(database: Database, port: int, message_id: str) -> str:
    """Create a webhook at this port and a message for it; return the webhook's id."""
    async with database.acquire() as conn:
        organization = await ensure_organization(conn, "default")
        webhook = await create_webhook(
            conn,
            webhook_id := new_webhook_id(),
            organization.id,
            f"http://localhost:{port}/hook?x=1",
            content_key=(sealed := SECRETS.seal(SECRET, "webhooks.secret", organization.id, webhook_id)).key_id,
            secret=sealed.data,
        )
        await conn.execute(
            "INSERT INTO webhook_deliveries (id, webhook_id, body) VALUES ($1, $2, $3)", message_id, webhook.id, BODY
        )
    return webhook.id


@asynccontextmanager
async def running_sender(database: Database, statuses: list[int], *, allow_private: bool) -> AsyncIterator[Receiver]:
    receiver = Receiver(statuses)
    server = await asyncio.start_server(receiver.handle, "127.0.0.1", 0)
    await queue_message(database, server.sockets[0].getsockname()[1], "msg_1")
    sender = WebhookSender(
        database, SECRETS, allow_private=allow_private, first_delay=datetime.timedelta(milliseconds=50)
    )
    sender.start()
    try:
        yield receiver
    finally:
        await sender.stop()
        server.close()


async def _row(database: Database) -> tuple[int, bool, str | None]:
    async with database.acquire() as conn:
        row = await conn.fetchrow("SELECT attempts, delivered_at IS NOT NULL, last_error FROM webhook_deliveries")
        assert row is not None
        return tuple(row)


async def _until_noted(database: Database, *, delivered: bool) -> tuple[int, bool, str | None]:
    async def noted() -> tuple[int, bool, str | None] | None:
        row = await _row(database)
        return row if (row[1] if delivered else row[2] is not None) else None

    return await until(noted)


async def test_a_message_is_signed_and_sent_until_it_is_taken(database: Database) -> None:
    async with running_sender(database, [500, 302, 204], allow_private=True) as receiver:
        await receiver.wait_for(3)
        attempts, _, _ = await _until_noted(database, delivered=True)
    assert {headers["webhook-id"] for headers, _ in receiver.got} == {"msg_1"}
    for headers, body in receiver.got:
        signed = f"msg_1.{headers['webhook-timestamp']}.".encode() + body
        expected = base64.b64encode(hmac.new(SECRET, signed, hashlib.sha256).digest()).decode()
        assert headers["webhook-signature"] == f"v1,{expected}"
        assert body.decode() == BODY
        assert headers["host"].startswith("localhost:")
    assert attempts == 3


async def test_after_a_rotation_both_secrets_sign_until_the_grace_ends(database: Database) -> None:
    async with running_sender(database, [500, 204], allow_private=True) as receiver:
        await receiver.wait_for(1)
        await _rotate(database, b"new", datetime.timedelta(hours=1))
        await receiver.wait_for(2)
        await _until_noted(database, delivered=True)
        assert _signatures(receiver.got[-1], b"new", SECRET) == [True, True]
        async with database.acquire() as conn:
            await conn.execute("UPDATE webhooks SET former_until = now()")
            await conn.execute(
                "INSERT INTO webhook_deliveries (id, webhook_id, body) SELECT 'msg_2', id, '{}' FROM webhooks"
            )
        await receiver.wait_for(3)
        assert _signatures(receiver.got[-1], b"new") == [True]
        async with database.acquire() as conn:
            await clean_up(conn)
            assert await conn.fetchval("SELECT former_secret FROM webhooks") is None


async def _rotate(database: Database, secret: bytes, grace: datetime.timedelta) -> None:
    async with database.transaction() as conn:
        organization = await ensure_organization(conn, "default")
        webhook = (await list_webhooks(conn, organization.id))[0].id
        sealed = SECRETS.seal(secret, "webhooks.secret", organization.id, webhook)
        former = SECRETS.seal(SECRET, "webhooks.former_secret", organization.id, webhook)
        await rotate_secret(
            conn,
            organization.id,
            webhook,
            SealedSecret(sealed.key_id, sealed.data),
            SealedSecret(former.key_id, former.data),
            grace,
        )


def _signatures(got: tuple[dict[str, str], bytes], *secrets: bytes) -> list[bool]:
    """Return, for each signature of a message, whether it is valid under the secret at the same position."""
    headers, body = got
    expected = [
        signature(secret, headers["webhook-id"], int(headers["webhook-timestamp"]), body.decode()) for secret in secrets
    ]
    return [found == wanted for found, wanted in zip(headers["webhook-signature"].split(" "), expected, strict=True)]


async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send an endless head as the answer, byte by byte."""
    with closing(writer), suppress(ConnectionError):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nx-slow: ")
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.01)


async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send an endless answer, as fast as it is read."""
    with closing(writer), suppress(ConnectionError):
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"accept-encoding: identity" in head.lower()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\n\r\n")
        while True:
            writer.write(b"\0" * 65536)
            await writer.drain()


async def webhook_row(database: Database, webhook_id: str) -> WebhookRow:
    async with database.acquire() as conn:
        organization = await ensure_organization(conn, "default")
        return next(row for row in await list_webhooks(conn, organization.id) if row.id == webhook_id)


async def test_a_receiver_that_never_ends_is_left_and_delays_nobody_else(database: Database) -> None:
    dripping = await asyncio.start_server(drip, "127.0.0.1", 0)
    flooding = await asyncio.start_server(flood, "127.0.0.1", 0)
    receiver = Receiver([204])
    prompt = await asyncio.start_server(receiver.handle, "127.0.0.1", 0)
    slow_id, endless_id, good_id = [
        await queue_message(database, server.sockets[0].getsockname()[1], f"msg_{number}")
        for number, server in enumerate((dripping, flooding, prompt))
    ]
    sender = WebhookSender(database, SECRETS, allow_private=True, timeout_s=5.5)
    sender.start()
    try:
        await receiver.wait_for(1)
        assert (await webhook_row(database, slow_id)).last_failed_at is None, "its time is not over"
        async with asyncio.timeout(PATIENCE_S):
            while (slow := await webhook_row(database, slow_id)).last_failed_at is None:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.02)
        assert (slow.last_error, slow.last_delivered_at) == ("the receiver did not answer within 5.5 s", None)
        for webhook_id in (endless_id, good_id):  # the status is all that is asked for
            found = await webhook_row(database, webhook_id)
            assert (found.last_delivered_at is not None, found.last_error) == (True, None)
    finally:
        await sender.stop()
        for server in (dripping, flooding, prompt):
            server.close()


def test_a_message_is_not_due_again_while_it_is_sent() -> None:
    assert FIRST_DELAY.total_seconds() > TIMEOUT_S


async def test_old_messages_are_deleted(database: Database) -> None:
    webhook_id = await queue_message(database, 1, "waiting")
    limit = Limit(
        "", (await webhook_row(database, webhook_id)).organization_id, None, None, None, "tokens", "day", 1, True
    )
    async with database.acquire() as conn:
        await conn.execute(
            "INSERT INTO webhook_deliveries (id, webhook_id, body, attempts, due_at, delivered_at) VALUES"
            " ('given up', $1, '', $2, now() - interval '8 days', NULL),"
            " ('tried', $1, '', $2 - 1, now() - interval '8 days', NULL),"
            " ('last try', $1, '', $2, now(), NULL),"
            " ('delivered', $1, '', 1, now() - interval '8 days', now() - interval '8 days'),"
            " ('just delivered', $1, '', 1, now(), now())",
            webhook_id,
            MAX_ATTEMPTS,
        )
        limit_id, _ = await set_limit(conn, limit)
        await conn.execute(
            "INSERT INTO limit_alerts (limit_id, window_start, percent)"
            " SELECT $1, limit_window('day', now()) - days * interval '1 day', 80 FROM unnest(ARRAY[0, 1, 5]) days",
            limit_id,
        )
        await clean_up(conn)
        kept = {row["id"] for row in await conn.fetch("SELECT id FROM webhook_deliveries")}
        assert kept == {"waiting", "tried", "last try", "just delivered"}
        assert await conn.fetchval("SELECT count(*) FROM limit_alerts") == 2


async def test_private_addresses_are_refused_unless_allowed(database: Database) -> None:
    async with running_sender(database, [204], allow_private=False) as receiver:
        attempts, delivered, error = await _until_noted(database, delivered=False)
    assert (attempts >= 1, delivered, receiver.got) == (True, False, [])
    assert error is not None
    assert "not a public address" in error


def test_the_signature_is_that_of_the_standard() -> None:
    """The example is that of the Standard Webhooks specification's libraries."""
    secret = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    signed = signature(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, '{"test": 2432232314}')
    assert signed == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert shown_secret(secret) == "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
