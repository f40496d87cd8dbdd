"""The background work on a gateway's adapters, put together: intake, probes, resumable uploads and collector."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

import msgspec
import structlog

from adapters.inspection import Bounds, inspect
from adapters.store import AdapterStore
from gateway.adapters.collector import Collector
from gateway.adapters.inspection_queue import InspectionQueue
from gateway.adapters.intake import Inspect, Intake
from gateway.adapters.prober import Prober
from gateway.adapters.uploads import Uploads
from gateway.adapters.verify import Verifier
from gateway.backends.base import Backend
from gateway.backends.pool import Pool
from gateway.db.pool import Database
from gateway.domain.errors import ENGINE_UNAVAILABLE, GatewayError, Overloaded
from gateway.domain.routing.bases import Bases

log = structlog.get_logger(__name__)


class Engines(Protocol):
    """The interface of engines by which versions are tried and content is unloaded, for any number of base models."""

    def ready_bases(self) -> list[str]:
        """Return the digests of the base models for which an engine is there."""

    async def probe(self, base: str | None, key: str) -> msgspec.Struct:
        """Let an engine of a base try the content of this key; return what the engine found.

        base: the digest of the base; None: whichever base there is, for content from before bases were recorded.

        Raises InvalidRequest: when the engine refuses the content; the error has the reason.
        Raises GatewayError: when the probe came to no end.
        """

    def resident(self) -> frozenset[str]:
        """Return the keys of the content that any engine holds."""

    async def unload(self, key: str) -> None:
        """Let all engines forget content; never raises."""


class PoolEngines:
    """The engines of one gateway's pools, with the interface `Engines`."""

    def __init__(self, pools: Mapping[str, Pool], bases: Bases) -> None:
        """Use the engines of these pools. pools: the pools by name."""
        self._pools = pools
        self._bases = bases

    def ready_bases(self) -> list[str]:
        """Return the digests of the base models for which an engine is there."""
        bases = [self._bases.named(name) for name, pool in self._pools.items() if pool.ready]
        return [base.digest for base in bases if base is not None]

    async def probe(self, base: str | None, key: str) -> msgspec.Struct:
        """Let an engine of a base try the content of this key; return what the engine found.

        base: the digest of the base; None: the default one. key: the content key by which engines know the adapter.
        """
        pools = [self._pools[name] for name in self._bases.pools_of(base) if name in self._pools]
        unable = Overloaded("No engine of the adapter's base model is there.", code=ENGINE_UNAVAILABLE)
        for pool in pools:
            if (ready := pool.serving.any_ready()) is not None:
                try:
                    return await ready.backend.probe(key)
                except Overloaded as error:  # such as a server that has the adapters alone with which it was started
                    unable = error
        raise unable

    def resident(self) -> frozenset[str]:
        """Return the keys of the content that any engine holds."""
        return frozenset().union(*(backend.resident() for backend in self._backends()))

    async def unload(self, key: str) -> None:
        """Let all engines forget content; never raise."""
        for backend in self._backends():
            try:
                await backend.unload(key)
            except GatewayError as error:
                # An engine that is away has nothing loaded.
                log.warning("adapter_not_unloaded", key=key, error=error.message)

    def _backends(self) -> Iterator[Backend]:
        for pool in self._pools.values():
            yield from pool.backends


class Lifecycle:
    """All background work on adapters, which runs between `start` and `stop`.

    bases: the base models that adapters may be for; each is registered in the database. upload_dir: the folder for the
    bytes of resumable uploads. inspection_lock: a file that all gateways of this machine share. grace_s: seconds for
    which content stays that nothing refers to. version_waits: set when a version may wait for a probe; None: one is
    looked for each second.
    """

    def __init__(
        self,
        database: Database,
        store: AdapterStore,
        engines: Engines,
        *,
        bases: Bases,
        bounds: Bounds,
        upload_dir: Path,
        inspection_lock: Path,
        grace_s: float,
        inspect: Inspect = inspect,
        version_waits: asyncio.Event | None = None,
    ) -> None:
        self.store = store
        self.bounds = bounds
        self.uploads = Uploads(database, upload_dir)
        self.verifier = Verifier(database, store)
        self.prober = Prober(database, engines.ready_bases, engines.probe, version_waits)
        self.intake = Intake(
            database,
            store,
            self.prober,
            bases=bases,
            bounds=bounds,
            queue=InspectionQueue(inspection_lock),
            inspect=inspect,
        )
        self.collector = Collector(
            database, store, self.uploads, resident=engines.resident, unload=engines.unload, grace_s=grace_s
        )

    def start(self) -> None:
        """Start all parts."""
        self.prober.start()
        self.collector.start()

    async def stop(self) -> None:
        """Stop all parts."""
        await self.prober.stop()
        await self.collector.stop()
