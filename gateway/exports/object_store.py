"""An S3-compatible bucket as a place for exports. An object appears when its upload is complete, never before.

The credentials are those of the delivery alone; none of this machine's environment or instance go with them. The owner
of the endpoint decides what its name means and where its answers redirect to; without `allow_http` the library speaks
TLS alone, so a request reaches only a server that proves to be the one that the URL names.
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import AsyncIterator
from typing import Any

import obstore
from obstore.store import S3Store

from gateway.exports.destination import S3Destination

PART_BYTES = 8 << 20
"""The bytes of a part of a multipart upload. With the parts under way this is the memory that an upload takes; S3
allows 10,000 parts."""

MAX_PARTS_UNDER_WAY = 2
TIMEOUT = datetime.timedelta(seconds=60)


class ObjectStore:
    """A bucket.

    The methods raise `obstore.exceptions.BaseError`, and FileNotFoundError where the bucket does not exist; their text
    may quote the store's answer.
    """

    def __init__(self, destination: S3Destination, *, allow_http: bool) -> None:
        credentials: Any = {
            "access_key_id": destination.access_key_id,
            "secret_access_key": destination.secret_access_key,
            "token": None,
            "expires_at": None,
        }
        # One by one: not every store that speaks S3 knows how to delete many at once.
        config: Any = {"bucket": destination.bucket, "region": destination.region, "disable_bulk_delete": True}
        if destination.endpoint is not None:
            config["endpoint"] = destination.endpoint
        self._store = S3Store(
            prefix=destination.prefix or None,
            config=config,
            client_options={"allow_http": allow_http, "timeout": TIMEOUT},
            retry_config={"max_retries": 3, "retry_timeout": TIMEOUT},
            credential_provider=lambda: credentials,
        )

    async def put(self, name: str, chunks: AsyncIterator[bytes]) -> None:
        await obstore.put_async(self._store, name, chunks, chunk_size=PART_BYTES, max_concurrency=MAX_PARTS_UNDER_WAY)

    async def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):  # S3 itself does not say so
            await obstore.delete_async(self._store, name)
