"""Delivers what the database queued for webhooks: signed, at least once, with growing delays, to public addresses.

Signed as Standard Webhooks says (standardwebhooks.com): `webhook-signature: v1,` and the base64 of HMAC-SHA256 over
`id.timestamp.body`. For a time after a rotation two signatures stand there, of the new secret and of the former one;
one that fits is enough for a receiver. The id is the same at every attempt. Knows nothing of what the messages say.
"""

from __future__ import annotations

import asyncio
import base64
import datetime
import functools
import hashlib
import hmac

import httpx
import structlog

from gateway.db.due_work import RARELY_S
from gateway.db.limits.webhooks import (
    FIRST_DELAY,
    Delivery,
    claim_deliveries,
    clean_up,
    note_delivered,
    note_failed,
)
from gateway.db.pool import FAILURES, Database
from gateway.domain.errors import ContentUnreadable
from gateway.support.outbound import Guard, NotPublic, new_client, send_to
from gateway.support.secrets import Secrets
from gateway.support.worker import Worker, stop_all

log = structlog.get_logger(__name__)

POLL_S = 1.0
CLEAN_UP_S = 600.0
TIMEOUT_S = 10.0
MAX_SENDING = 100
MAX_REASON = 500
SECRET_PREFIX = "whsec_"  # noqa: S105 - the standard's prefix, no secret


class Undeliverable(Exception):
    """The error for a message that was not delivered; the text has the reason."""


class WebhookSender:
    """The sender of queued webhook messages, between `start` and `stop`. A gateway process has one.

    Each webhook gets one message at a time, all webhooks side by side: a slow receiver delays its own messages alone.
    allow_private: addresses that the internet cannot reach, such as the loopback, are sent to as well. first_delay: the
    time before the second attempt; each further delay is twice as long. timeout_s: the longest time of a whole attempt.
    """

    def __init__(
        self,
        database: Database,
        secrets: Secrets,
        *,
        allow_private: bool,
        first_delay: datetime.timedelta = FIRST_DELAY,
        timeout_s: float = TIMEOUT_S,
        wake: asyncio.Event | None = None,
    ) -> None:
        """Prepare the sender.

        wake: set when a message may wait; None: the sender queries for messages every POLL_S. allow_private: True:
        messages may go to private addresses, too. first_delay: the pause after the first failure, from which others
        grow.
        """
        self._database = database
        self._secrets = secrets
        self._guard = Guard.of(allow_private=allow_private)
        self._first_delay = first_delay
        self._timeout_s = timeout_s
        self._wake = wake or asyncio.Event()
        self._sending: dict[str, asyncio.Task[None]] = {}  # by the webhook's id
        self._client: httpx.AsyncClient | None = None
        poll_s = POLL_S if wake is None else RARELY_S
        self._workers = (
            Worker(self._begin, poll_s, name="webhooks", wake=self._wake),
            Worker(self._clean_up, CLEAN_UP_S, name="messages of webhooks", rests_first=True),
        )

    def start(self) -> None:
        """Begin to deliver."""
        self._client = new_client(self._timeout_s)
        for worker in self._workers:
            worker.start()

    async def stop(self) -> None:
        """Stop delivering; messages under way are sent again later."""
        await stop_all(*self._workers)
        sending = list(self._sending.values())
        for task in sending:
            task.cancel()
        await asyncio.gather(*sending, return_exceptions=True)
        if self._client is not None:
            await self._client.aclose()

    async def _begin(self) -> None:
        """Start to send the deliveries that are due and have room."""
        assert self._client is not None, "it was started"
        if len(self._sending) >= MAX_SENDING:
            return
        async with self._database.acquire() as conn:
            due = await claim_deliveries(
                conn, MAX_SENDING - len(self._sending), busy=self._sending, first_delay=self._first_delay
            )
        for delivery in due:
            task = asyncio.create_task(self._deliver(self._client, delivery))
            self._sending[delivery.webhook_id] = task
            task.add_done_callback(functools.partial(self._sending_ended, delivery.webhook_id))

    def _sending_ended(self, webhook_id: str, _: asyncio.Task[None]) -> None:
        del self._sending[webhook_id]
        self._wake.set()

    async def _deliver(self, client: httpx.AsyncClient, delivery: Delivery) -> None:
        reason = await self._attempt(client, delivery)
        if reason is not None:
            log.warning("webhook_failed", delivery=delivery.id, attempts=delivery.attempts, error=reason)
        try:
            async with self._database.acquire() as conn:
                if reason is None:
                    await note_delivered(conn, delivery.id)
                else:
                    await note_failed(conn, delivery.id, reason[:MAX_REASON])
        except FAILURES as error:  # it is due again, and the receiver knows its id
            log.warning("webhooks_unavailable", error=repr(error))

    async def _attempt(self, client: httpx.AsyncClient, delivery: Delivery) -> str | None:
        """Attempt a delivery. Return the reason why it failed, or None if it succeeded."""
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._send(client, delivery)
        except TimeoutError:
            return f"the receiver did not answer within {self._timeout_s:g} s"
        except ContentUnreadable:
            return "no content key of this gateway opens the webhook's secret"
        except (Undeliverable, NotPublic, httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
            return str(error) or type(error).__name__
        return None

    async def _send(self, client: httpx.AsyncClient, delivery: Delivery) -> None:
        """Send a message to a webhook, and read only the status of the answer.

        Raises Undeliverable: when the status is no success.
        Raises ContentUnreadable: when this gateway lacks the content key that encrypted the webhook's secret.
        Raises NotPublic: when the URL leads to an address that is not public. Raises httpx.HTTPError, OSError or
        UnicodeError: when the receiver cannot be reached.
        """
        url = httpx.URL(delivery.url)
        place = delivery.organization_id, delivery.webhook_id
        signing = [self._secrets.open(delivery.content_key, delivery.secret, "webhooks.secret", *place)]
        if delivery.former_secret is not None:
            former = self._secrets.open(
                delivery.former_content_key, delivery.former_secret, "webhooks.former_secret", *place
            )
            signing.append(former)
        signatures = [signature(secret, delivery.id, delivery.now_s, delivery.body) for secret in signing]
        headers = {
            "content-type": "application/json",
            "webhook-id": delivery.id,
            "webhook-timestamp": str(delivery.now_s),
            "webhook-signature": " ".join(signatures),
        }
        address = await self._guard.address_of(url)
        async with send_to(client, address, "POST", url, headers=headers, content=delivery.body.encode()) as response:
            if not response.is_success:
                raise Undeliverable(f"the receiver answered {response.status_code}")

    async def _clean_up(self) -> None:
        async with self._database.acquire() as conn:
            await clean_up(conn)


def signature(secret: bytes, message_id: str, timestamp_s: int, body: str) -> str:
    """Return the signature of a message, in the form of Standard Webhooks.

    secret: the secret of the webhook. timestamp_s: the time of the attempt in Unix seconds.
    """
    digest = hmac.digest(secret, f"{message_id}.{timestamp_s}.{body}".encode(), hashlib.sha256)
    return f"v1,{base64.b64encode(digest).decode()}"


def shown_secret(secret: bytes) -> str:
    """Return a secret in the form that the libraries of receivers take: with the prefix `whsec_`."""
    return SECRET_PREFIX + base64.b64encode(secret).decode()
