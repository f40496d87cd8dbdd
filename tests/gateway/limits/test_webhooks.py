"""Webhooks are signed so that receivers can tell, sent until they are taken, and never to private addresses."""

from __future__ import annotations

import asyncio
import base64
import datetime
import hashlib
import hmac
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from gateway.db.organizations import ensure_organization
from gateway.db.pool import Database
from gateway.db.webhooks import create_webhook
from gateway.limits.webhooks import Undeliverable, WebhookSender, checked_address, shown_secret, signature

SECRET = b"0123456789abcdef"
BODY = '{"type": "limit.threshold_reached"}'


class Receiver:
    """A web server that answers with each status in turn, the last one for ever. got: (headers, body)."""

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
        async with asyncio.timeout(10):
            while len(self.got) < count:
                await self.changed.wait()
                self.changed.clear()


@asynccontextmanager
async def delivering(database: Database, statuses: list[int], *, allow_private: bool) -> AsyncIterator[Receiver]:
    receiver = Receiver(statuses)
    server = await asyncio.start_server(receiver.handle, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with database.acquire() as conn:
        organization = await ensure_organization(conn, "default")
        webhook = await create_webhook(conn, organization.id, f"http://localhost:{port}/hook?x=1", SECRET)
        await conn.execute(
            "INSERT INTO webhook_deliveries (id, webhook_id, body) VALUES ('msg_1', $1, $2)", webhook.id, BODY
        )
    sender = WebhookSender(database, allow_private=allow_private, first_delay=datetime.timedelta(milliseconds=50))
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
    for _ in range(500):
        row = await _row(database)
        if row[1] if delivered else row[2] is not None:
            return row
        await asyncio.sleep(0.02)
    raise AssertionError(row)


async def test_a_message_is_signed_and_sent_until_it_is_taken(database: Database) -> None:
    async with delivering(database, [500, 302, 204], allow_private=True) as receiver:
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


async def test_private_addresses_are_refused_unless_allowed(database: Database) -> None:
    async with delivering(database, [204], allow_private=False) as receiver:
        attempts, delivered, error = await _until_noted(database, delivered=False)
    assert (attempts >= 1, delivered, receiver.got) == (True, False, [])
    assert error is not None
    assert "not a public address" in error


PRIVATE = [
    "127.0.0.1",
    "10.0.0.1",
    "169.254.169.254",
    "192.168.1.1",
    "100.64.0.1",
    "0.0.0.0",
    "224.0.0.1",
    "[::1]",
    "[fe80::1]",
    "[fd00::1]",
    "[::ffff:10.0.0.1]",
    "[64:ff9b:1::1]",
    "[64:ff9b::a00:1]",
    "[2002:a00:1::1]",
]


@pytest.mark.parametrize("host", PRIVATE)
async def test_what_is_private(host: str) -> None:
    with pytest.raises(Undeliverable):
        await checked_address(httpx.URL(f"http://{host}/"), allow_private=False)


async def test_public_addresses_are_allowed() -> None:
    assert await checked_address(httpx.URL("https://1.1.1.1/"), allow_private=False) == "1.1.1.1"
    if socket.has_ipv6:
        found = await checked_address(httpx.URL("https://[2606:4700::1111]/"), allow_private=False)
        assert found == "2606:4700::1111"


def test_the_signature_is_that_of_the_standard() -> None:
    """The example of the Standard Webhooks specification's libraries."""
    secret = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    signed = signature(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, '{"test": 2432232314}')
    assert signed == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert shown_secret(secret) == "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
