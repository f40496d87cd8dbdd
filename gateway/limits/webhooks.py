"""Delivers what the database queued for webhooks: signed, at least once, with growing delays, to public addresses.

Signed as Standard Webhooks says (standardwebhooks.com): `webhook-signature: v1,` and the base64 of HMAC-SHA256 over
`id.timestamp.body`. The id is the same at every attempt. Knows nothing of what the messages say.
"""

from __future__ import annotations

import asyncio
import base64
import datetime
import hashlib
import hmac
import ipaddress
import socket

import httpx
import structlog

from gateway.db.pool import FAILURES, Database
from gateway.db.webhooks import FIRST_DELAY, Delivery, claim_deliveries, note_delivered, note_failed

log = structlog.get_logger(__name__)

POLL_S = 1.0
BATCH = 8
TIMEOUT_S = 10.0
SECRET_PREFIX = "whsec_"  # noqa: S105 - the standard's prefix, no secret

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")  # RFC 6052: an IPv4 address is in the last 32 bits
_LOCAL_NAT64 = ipaddress.IPv6Network("64:ff9b:1::/48")  # RFC 8215


class Undeliverable(Exception):
    """It was not delivered; the message says why."""


class WebhookSender:
    """One per gateway process; works between `start` and `stop`.

    allow_private: also to addresses that the internet cannot reach, such as the loopback. first_delay: before the
    second attempt; each further one is twice as long.
    """

    def __init__(
        self, database: Database, *, allow_private: bool, first_delay: datetime.timedelta = FIRST_DELAY
    ) -> None:
        self._database = database
        self._allow_private = allow_private
        self._first_delay = first_delay
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        # A client per gateway: no proxy of the environment, no redirect to where nobody checked the address.
        timeout = httpx.Timeout(TIMEOUT_S)
        async with httpx.AsyncClient(timeout=timeout, trust_env=False, follow_redirects=False) as client:
            while True:
                try:
                    async with self._database.acquire() as conn:
                        due = await claim_deliveries(conn, BATCH, first_delay=self._first_delay)
                    await asyncio.gather(*(self._deliver(client, each) for each in due))
                except FAILURES as error:
                    log.warning("webhooks_unavailable", error=repr(error))
                await asyncio.sleep(POLL_S)

    async def _deliver(self, client: httpx.AsyncClient, delivery: Delivery) -> None:
        try:
            await self._send(client, delivery)
        except (Undeliverable, httpx.HTTPError, OSError, ValueError) as error:
            reason = str(error) or type(error).__name__
            log.warning("webhook_failed", delivery=delivery.id, attempts=delivery.attempts, error=reason)
            async with self._database.acquire() as conn:
                await note_failed(conn, delivery.id, reason[:500])
        else:
            async with self._database.acquire() as conn:
                await note_delivered(conn, delivery.id)

    async def _send(self, client: httpx.AsyncClient, delivery: Delivery) -> None:
        """To an address that was checked, whatever the name means by the time of the connection. Raises Undeliverable
        and what httpx and the resolver raise."""
        url = httpx.URL(delivery.url)
        address = await checked_address(url, allow_private=self._allow_private)
        response = await client.post(
            url.copy_with(host=address),
            content=delivery.body.encode(),
            headers={
                "host": url.netloc.decode(),
                "content-type": "application/json",
                "webhook-id": delivery.id,
                "webhook-timestamp": str(delivery.now_s),
                "webhook-signature": signature(delivery.secret, delivery.id, delivery.now_s, delivery.body),
            },
            extensions={"sni_hostname": url.host},
        )
        if not response.is_success:
            raise Undeliverable(f"the receiver answered {response.status_code}")


def signature(secret: bytes, message_id: str, timestamp_s: int, body: str) -> str:
    digest = hmac.digest(secret, f"{message_id}.{timestamp_s}.{body}".encode(), hashlib.sha256)
    return f"v1,{base64.b64encode(digest).decode()}"


def shown_secret(secret: bytes) -> str:
    """As receivers' libraries take it."""
    return SECRET_PREFIX + base64.b64encode(secret).decode()


async def checked_address(url: httpx.URL, *, allow_private: bool) -> str:
    """An address of the URL's host. Raises Undeliverable where any of its addresses is private, and OSError."""
    if url.scheme not in ("http", "https") or not url.host:
        raise Undeliverable("the URL is not one of http or https")
    port = url.port or (443 if url.scheme == "https" else 80)
    found = await asyncio.get_running_loop().getaddrinfo(url.host, port, type=socket.SOCK_STREAM)
    addresses = [str(entry[4][0]).partition("%")[0] for entry in found]
    for address in addresses:
        if not allow_private and not _is_public(address):
            raise Undeliverable(f"{url.host} is at {address}, which is not a public address")
    return addresses[0]


def _is_public(address: str) -> bool:
    parsed = ipaddress.ip_address(address)
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed in _LOCAL_NAT64:
            return False
        inner = parsed.ipv4_mapped or parsed.sixtofour
        if parsed in _NAT64:
            inner = ipaddress.IPv4Address(int(parsed) & 0xFFFF_FFFF)
        parsed = inner or parsed
    return parsed.is_global and not parsed.is_multicast
