"""Servers of other makers as the replicas of pools: put together from a revision's row and the address of each."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable

import httpx

from gateway.backends.base import Model
from gateway.backends.foreign.backend import ForeignBackend
from gateway.backends.foreign.connection import ServerGone
from gateway.backends.foreign.driver import Pooled, ReplicaName
from gateway.backends.foreign.drivers import driver_of
from gateway.backends.foreign.model import OpaqueModel
from gateway.backends.foreign.server import Server
from gateway.backends.pool import ManagedBackend
from gateway.backends.usage import UsageSink
from gateway.db.pools.revisions import RevisionRow
from gateway.domain.pools.foreign_settings import parse_foreign_settings
from gateway.domain.pools.provider_key import ProviderKey
from gateway.support.outbound import NotPublic

AddressOf = Callable[[httpx.URL], Awaitable[str]]
"""Returns the address that a URL leads to. Raises where it may not be connected to."""


class ForeignServers:
    """Makes backends of servers of other makers. One per gateway process."""

    def __init__(
        self,
        sink: UsageSink,
        key: Callable[[str], Awaitable[str]],
        address_of: Callable[[bool], AddressOf],
        tls: Callable[[], ssl.SSLContext],
        own_key: Callable[[str, str], Awaitable[ProviderKey | None]],
    ) -> None:
        """key: returns the key of a pool's servers, by the pool's id. own_key: returns the key that a project has
        brought for them, by the ids of project and pool. address_of: judges addresses, private ones as its
        argument says. tls: gives the authorities that are trusted."""
        self._sink = sink
        self._key = key
        self._address_of = address_of
        self._tls = tls
        self._own_key = own_key

    def connect(self, url: str, row: RevisionRow, model: Model, name: ReplicaName) -> ManagedBackend:
        """Return the backend of the server at a URL, not started. name: of the replica that it is."""
        settings = parse_foreign_settings(row.settings)
        pooled = Pooled(model, settings, has_tokenizer=not isinstance(model, OpaqueModel))
        server = Server(
            url, judged_by(self._address_of(settings.allow_private)), self._tls, connect_s=settings.connect_seconds
        )

        async def authorize() -> str:
            return await self._key(row.pool_id)

        async def own_key(project_id: str) -> ProviderKey | None:
            return await self._own_key(project_id, row.pool_id)

        return ForeignBackend(server, driver_of(row.driver, pooled), pooled, self._sink, authorize, name, own_key)


def judged_by(address_of: AddressOf) -> Callable[[str], Awaitable[str]]:
    """Return what finds the address of a server, which raises ServerGone where that may not be connected to."""

    async def judged(url: str) -> str:
        try:
            return await address_of(httpx.URL(url))
        except NotPublic as error:
            raise ServerGone(str(error)) from None

    return judged


def opaque_model_of(row: RevisionRow) -> OpaqueModel:
    """Return the model of a revision whose files only its servers have."""
    assert row.base_digest is not None
    return OpaqueModel(row.base_digest, parse_foreign_settings(row.settings))
