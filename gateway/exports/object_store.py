"""An S3-compatible bucket as a place for exports. An object appears when its upload is complete, never before.

The credentials are those of the delivery alone; none of this machine's environment or instance go with them. The
library looks names up by itself and follows redirects. So it reaches an endpoint that a customer chose through a tunnel
that leads to the one address that was checked before, and nowhere else.
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import obstore
from obstore.store import S3Store

from gateway.exports.destination import S3Destination
from gateway.support.tunnel import tunnel

PART_BYTES = 8 << 20
"""The bytes of a part of a multipart upload. With the parts under way this is the memory that an upload takes; S3
allows 10,000 parts."""

MAX_PARTS_UNDER_WAY = 2
TIMEOUT = datetime.timedelta(seconds=60)


class ObjectStore:
    """An S3-compatible bucket that takes exports.

    The methods raise `obstore.exceptions.BaseError`, and FileNotFoundError where the bucket does not exist; their text
    may quote the store's answer.
    """

    def __init__(self, destination: S3Destination, *, address: str | None = None, allow_http: bool = False) -> None:
        """Open the bucket of a destination.

        address: the address of the destination's endpoint, where it has one; None: any address that the endpoint's name
        and its redirects lead to, as for AWS itself. allow_http: True: plain HTTP is allowed for an endpoint whose URL
        says so.
        """
        self._destination = destination
        self._address = address
        self._allow_http = allow_http

    async def put(self, name: str, chunks: AsyncIterator[bytes]) -> None:
        """Upload an object in parts, a few at a time; one of the same name is replaced once the upload is complete."""
        async with self._open_store() as store:
            await obstore.put_async(store, name, chunks, chunk_size=PART_BYTES, max_concurrency=MAX_PARTS_UNDER_WAY)

    async def remove(self, name: str) -> None:
        """Delete an object. Do nothing where there is none of the name."""
        async with self._open_store() as store:
            with contextlib.suppress(FileNotFoundError):  # S3 itself does not say so
                await obstore.delete_async(store, name)

    @asynccontextmanager
    async def _open_store(self) -> AsyncIterator[S3Store]:
        endpoint = httpx.URL(self._destination.endpoint or "")
        if self._address is None or endpoint.scheme != "https":
            yield self._store(None)
            return
        async with tunnel(endpoint.raw_host.decode(), endpoint.port or 443, self._address) as proxy_url:
            yield self._store(proxy_url)

    def _store(self, proxy_url: str | None) -> S3Store:
        destination = self._destination
        credentials: Any = {
            "access_key_id": destination.access_key_id,
            "secret_access_key": destination.secret_access_key,
            "token": None,
            "expires_at": None,
        }
        # Deleted one by one: not every store that speaks S3 knows how to delete many at once.
        config: Any = {"bucket": destination.bucket, "region": destination.region, "disable_bulk_delete": True}
        if destination.endpoint is not None:
            config["endpoint"] = destination.endpoint
        options: Any = {"allow_http": self._allow_http, "timeout": TIMEOUT}
        if proxy_url is not None:
            options["proxy_url"] = proxy_url
        return S3Store(
            prefix=destination.prefix or None,
            config=config,
            client_options=options,
            retry_config={"max_retries": 3, "retry_timeout": TIMEOUT},
            credential_provider=lambda: credentials,
        )
