"""The lives of a gateway's adapters, put together: the way in, the probes, resumable uploads and the way out."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import msgspec
import structlog

from adapters.inspection import BaseShape, Bounds, inspect
from adapters.store import AdapterStore
from gateway.adapters.collector import Collector
from gateway.adapters.inspection_queue import InspectionQueue
from gateway.adapters.intake import Inspect, Intake
from gateway.adapters.prober import Prober
from gateway.adapters.uploads import Uploads
from gateway.adapters.verify import Verifier
from gateway.backends.pool import Pool
from gateway.db.pool import Database
from gateway.domain.errors import GatewayError

log = structlog.get_logger(__name__)


class Engines(Protocol):
    """What the lives of adapters need of engines, whatever their number."""

    def ready(self) -> bool:
        """Whether one is there."""

    async def probe(self, key: str) -> msgspec.Struct:
        """Let one try the content of this key; what it found. Raises InvalidRequest with the reason where it refuses,
        another GatewayError where it came to no end."""

    def resident(self) -> frozenset[str]:
        """Keys of the content that any of them holds."""

    async def unload(self, key: str) -> None:
        """Let all of them forget it; never raises."""


class PoolEngines:
    """`Engines` of one pool."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def ready(self) -> bool:
        return self._pool.ready

    async def probe(self, key: str) -> msgspec.Struct:
        return await self._pool.pick().probe(key)

    def resident(self) -> frozenset[str]:
        return frozenset().union(*(backend.resident() for backend in self._pool.backends))

    async def unload(self, key: str) -> None:
        for backend in self._pool.backends:
            try:
                await backend.unload(key)
            except GatewayError as error:
                # An engine that is away has nothing loaded.
                log.warning("adapter_not_unloaded", key=key, error=error.message)


class Lifecycle:
    """Works in the background between `start` and `stop`. base, base_digest: the shape of the base model, and its
    digest, which is registered in the database. upload_dir: for the bytes of resumable uploads.
    inspection_lock: a file that all gateways of this machine share.
    grace_s: how long content stays that nothing refers to."""

    def __init__(
        self,
        database: Database,
        store: AdapterStore,
        engines: Engines,
        *,
        base: BaseShape,
        base_digest: str,
        bounds: Bounds,
        upload_dir: Path,
        inspection_lock: Path,
        grace_s: float,
        inspect: Inspect = inspect,
    ) -> None:
        self.store = store
        self.bounds = bounds
        self.uploads = Uploads(database, upload_dir)
        self.verifier = Verifier(database, store)
        self.prober = Prober(database, engines.ready, engines.probe)
        self.intake = Intake(
            database,
            store,
            self.prober,
            base=base,
            base_digest=base_digest,
            bounds=bounds,
            queue=InspectionQueue(inspection_lock),
            inspect=inspect,
        )
        self.collector = Collector(
            database, store, self.uploads, resident=engines.resident, unload=engines.unload, grace_s=grace_s
        )

    def start(self) -> None:
        self.prober.start()
        self.collector.start()

    async def stop(self) -> None:
        await self.prober.stop()
        await self.collector.stop()
