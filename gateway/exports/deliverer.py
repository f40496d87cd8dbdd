"""Delivers exports that are due; one gateway at a time does. Failed deliveries are repeated after growing pauses.

File names depend on the exported rows alone: a second attempt replaces the files of the first one.
"""

from __future__ import annotations

import datetime
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import msgspec
import structlog

from gateway.db.billing import deliveries
from gateway.db.billing.deliveries import FIRST_DELAY, DeliveryRow, DueRun
from gateway.db.pool import Database
from gateway.exports.destination import FolderDestination, join_secret
from gateway.exports.failure import in_detail, in_words
from gateway.exports.object_store import ObjectStore
from gateway.exports.place import Folder, Place, put_export
from gateway.exports.produce import open_export
from gateway.exports.request import make_request
from gateway.support.outbound import Guard
from gateway.support.secrets import Secrets
from gateway.support.worker import Worker

if TYPE_CHECKING:
    from gateway.db.pool import Connection

log = structlog.get_logger(__name__)

POLL_S = 30.0

Places = Callable[[DeliveryRow], Awaitable[Place]]
"""A function that returns the place of a delivery whose secret is decrypted.

Raises NotPublic: when the destination is not at a public address.
Raises OSError or UnicodeError: when the destination's name has no address.
"""


class Deliverer(Worker):
    """Delivers exports between `start` and `stop`. A gateway process has one.

    first_delay: the time before the second attempt.
    """

    def __init__(
        self,
        database: Database,
        places: Places,
        secrets: Secrets,
        *,
        poll_s: float = POLL_S,
        first_delay: datetime.timedelta = FIRST_DELAY,
    ) -> None:
        super().__init__(self.deliver_due, poll_s, name="deliveries")
        self._database = database
        self._places = places
        self._secrets = secrets
        self._first_delay = first_delay

    async def deliver_due(self) -> int:
        """Attempt all deliveries that are due, unless another gateway does; return the number of attempts.

        The lock for it goes back to the database if this process dies.

        Raises one of `gateway.db.pool.FAILURES`: when the database fails.
        """
        async with self._database.acquire() as conn:
            if not await deliveries.try_become_deliverer(conn):
                return 0
            try:
                return await self._deliver_due(conn)
            finally:
                await deliveries.stop_delivering(conn)

    async def _deliver_due(self, conn: Connection) -> int:
        num_attempts = 0
        await deliveries.queue_due_periods(conn)
        while (run := await deliveries.next_due_run(conn)) is not None:
            num_attempts += 1
            error = await self._deliver(run)
            if error is None:
                await deliveries.note_delivered(conn, run)
                log.info("export_delivered", delivery=run.delivery.id, period=run.period)
            else:
                await deliveries.note_failed(conn, run, error, first_delay=self._first_delay)
        return num_attempts

    async def _deliver(self, run: DueRun) -> str | None:
        """Export a due period to its destination. Return the reason of a failure in words, or None after a success."""
        delivery, secret = run.delivery, None
        try:
            delivery = self._opened(delivery)
            secret = delivery.secret.decode() if delivery.secret is not None else None
            request = make_request(delivery.organization_id, delivery.kind, delivery.format, run.period)
            place = await self._places(delivery)
            async with open_export(self._database, request) as export:
                await put_export(export, place)
        except Exception as error:  # whatever it is, those that follow are not to wait for it
            reason, detail = in_words(error), in_detail(error, secret)
            log.warning("delivery_failed", delivery=delivery.id, period=run.period, error=reason, detail=detail)
            return reason
        return None

    def _opened(self, delivery: DeliveryRow) -> DeliveryRow:
        """Return a delivery with its secret decrypted.

        Raises ContentUnreadable: when this gateway lacks the content key that encrypted the secret.
        """
        if delivery.secret is None:
            return delivery
        secret = self._secrets.open(
            delivery.content_key, delivery.secret, "deliveries.secret", delivery.organization_id, delivery.name
        )
        return msgspec.structs.replace(delivery, content_key=None, secret=secret)


def places_below(root: Path, *, allow_private: bool) -> Places:
    """Return the function that finds places: folders below root, one for each organization, and object stores.

    allow_private: True permits object stores at private addresses, or without TLS.
    """
    guard = Guard.of(allow_private=allow_private)

    async def place(delivery: DeliveryRow) -> Place:
        destination = join_secret(
            delivery.destination, delivery.secret.decode() if delivery.secret is not None else None
        )
        if isinstance(destination, FolderDestination):
            return Folder(root / delivery.organization_id / destination.path)
        address = None if destination.endpoint is None else await guard.address_of(httpx.URL(destination.endpoint))
        return ObjectStore(destination, address=address, allow_http=allow_private)

    return place
