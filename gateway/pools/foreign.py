"""Servers of other makers as the replicas of pools: put together from a revision's row and the address of each."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import msgspec

from gateway.backends.base import Model
from gateway.backends.foreign.backend import ForeignBackend
from gateway.backends.foreign.connection import ServerGone
from gateway.backends.foreign.driver import Content, Pooled, ReplicaName
from gateway.backends.foreign.drivers import driver_of
from gateway.backends.foreign.model import OpaqueModel
from gateway.backends.foreign.server import Server
from gateway.backends.pool import ManagedBackend
from gateway.backends.usage import UsageSink
from gateway.db.pools.revisions import RevisionRow
from gateway.domain.pools.addresses import key_file_of, socket_of
from gateway.domain.pools.foreign_settings import parse_foreign_settings
from gateway.domain.pools.provider_key import ProviderKey
from gateway.support.outbound import NotPublic, is_public

SOON_S = 0.5
"""Seconds between two requests to a starting server, which is ready as soon as its agent says so."""

AddressOf = Callable[[httpx.URL], Awaitable[str]]
"""A function that returns the address that a URL leads to.

Raises NotPublic: when no connection to the address is allowed.
"""


class ForeignServers:
    """Makes backends of servers of other makers. A gateway process has one."""

    def __init__(
        self,
        sink: UsageSink,
        key: Callable[[str], Awaitable[str]],
        address_of: Callable[[bool], AddressOf],
        tls: Callable[[], ssl.SSLContext],
        own_key: Callable[[str, str], Awaitable[ProviderKey | None]],
        content: Content | None = None,
    ) -> None:
        """Prepare to make backends.

        key: returns the key of a pool's servers, by the pool's id.
        own_key: returns the key that a project has brought for a pool's servers, by the ids of project and pool.
        address_of: returns a function that finds the address of a URL; its argument: whether private ones are allowed.
        tls: gives the authorities that are trusted.
        content: reads the adapter store, for servers that adapters are sent to; None where there are no such servers.
        """
        self._sink = sink
        self._key = key
        self._address_of = address_of
        self._tls = tls
        self._content = content
        self._own_key = own_key

    def connect(self, url: str, row: RevisionRow, model: Model, name: ReplicaName) -> ManagedBackend:
        """Return the backend of the server at a URL, not started. name: the name of its replica."""
        settings, socket = parse_foreign_settings(row.settings), socket_of(url)
        if socket is not None:
            settings = msgspec.structs.replace(settings, health_seconds=min(settings.health_seconds, SOON_S))
        pooled = Pooled(model, settings, has_tokenizer=not isinstance(model, OpaqueModel), content=self._content)
        server = Server(
            url,
            judged_by(self._address_of(settings.allow_private)),
            self._tls,
            connect_s=settings.connect_seconds,
            is_outside=is_public,
        )

        async def authorize() -> str:
            if socket is not None:
                return _key_of(socket)
            return await self._key(row.pool_id)

        async def own_key(project_id: str) -> ProviderKey | None:
            return await self._own_key(project_id, row.pool_id)

        return ForeignBackend(server, driver_of(row.driver, pooled), pooled, self._sink, authorize, name, own_key)


def judged_by(address_of: AddressOf) -> Callable[[str], Awaitable[str]]:
    """Return a function that finds the address of a server, and raises ServerGone where it may not be connected to."""

    async def judged(url: str) -> str:
        try:
            return await address_of(httpx.URL(url))
        except NotPublic as error:
            raise ServerGone(str(error)) from None

    return judged


def _key_of(socket: str) -> str:
    """Return the key of a server that an agent started, from the file beside the server's socket.

    Raises OSError: when the file cannot be read.
    """
    return Path(key_file_of(socket)).read_text().strip()


def opaque_model_of(row: RevisionRow) -> OpaqueModel:
    """Return the model of a revision whose files only its servers have."""
    assert row.base_digest is not None
    return OpaqueModel(row.base_digest, parse_foreign_settings(row.settings))
