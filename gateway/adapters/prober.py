"""Lets an engine try every version before requests can name it.

A version whose upload found no engine, or whose gateway died, waits in the database and is probed by any gateway that
claims it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING

import msgspec
import structlog

from adapters.ref import content_key
from gateway.adapters.presence import keep_alive
from gateway.db.adapters import probes
from gateway.db.adapters.probes import MAX_PROBES, VersionToProbe
from gateway.db.due_work import RARELY_S
from gateway.db.organization import audit
from gateway.db.pool import Database
from gateway.domain.errors import BackendFailed, GatewayError, InvalidRequest
from gateway.support.worker import Worker

if TYPE_CHECKING:
    from gateway.db.pool import Connection

INTERVAL_S = 1.0
MAX_AT_ONCE = 2

log = structlog.get_logger(__name__)


class Prober(Worker):
    """Probes waiting versions from `start` to `stop`."""

    def __init__(
        self,
        database: Database,
        ready_bases: Callable[[], Collection[str]],
        probe: Callable[[str | None, str], Awaitable[msgspec.Struct]],
        wake: asyncio.Event | None = None,
    ) -> None:
        """Prepare the prober.

        ready_bases, probe: as in `gateway.adapters.service.Engines`.
        wake: set when a version may wait; None: the prober looks each INTERVAL_S.
        """
        super().__init__(self._probe_all, INTERVAL_S if wake is None else RARELY_S, name="probes", wake=wake)
        self._database = database
        self._ready_bases = ready_bases
        self._probe = probe
        self._slots = asyncio.Semaphore(MAX_AT_ONCE)

    def is_ready(self, base: str | None) -> bool:
        """Tell whether an engine of a base model is there to try a version. base: None: of any base model."""
        ready = self._ready_bases()
        return bool(ready) if base is None else base in ready

    async def probe(self, adapter_id: str, version: int, *, mine: bool) -> None:
        """Probe a version if it waits, nobody else probes it, and an engine is there; store the outcome.

        mine: whether the caller has added the version with the claim to its probe.
        """
        bases = self._ready_bases()
        if not bases:
            return
        async with self._slots:
            async with self._database.acquire() as conn:
                claimed = await probes.claim_version(conn, adapter_id, version, bases, mine=mine)
            if claimed is not None:
                await self._try(claimed)

    async def probe_waiting(self) -> bool:
        """Probe the version whose turn it is. Return True if there was one and it no longer waits."""
        bases = self._ready_bases()
        if not bases:
            return False
        async with self._slots:
            async with self._database.acquire() as conn:
                claimed = await probes.claim_oldest(conn, bases)
            return claimed is not None and await self._try(claimed)

    async def _try(self, claimed: VersionToProbe) -> bool:
        """Let an engine try a version; return True if the version no longer waits."""
        if claimed.num_probes > MAX_PROBES:
            await self._reject(claimed, f"{MAX_PROBES} probes ended with the engine or the gateway that ran them")
            return True

        async def touch() -> None:
            async with self._database.acquire() as conn:
                await probes.touch_claim(conn, claimed.adapter_id, claimed.version)

        try:
            async with keep_alive(touch):
                found = await self._probe(claimed.base_digest, content_key(claimed.project_id, claimed.digest))
        except InvalidRequest as refusal:
            await self._reject(claimed, refusal.message)
        except GatewayError as error:
            log.warning("adapter_not_probed", adapter=claimed.name, version=claimed.version, error=error.message)
            await self._give_back(claimed, failed=isinstance(error, BackendFailed))
            return False
        else:
            await self._set_ready(claimed, found)
        return True

    async def _give_back(self, claimed: VersionToProbe, *, failed: bool) -> None:
        """Release the claim to a probe. failed: True if the engine failed, False if it was busy.

        A probe that failed while an engine is there waits longer for the next. If no engine is there, the probe may
        have killed it, and counts as one of `MAX_PROBES`.
        """
        async with self._database.acquire() as conn:
            is_ready = self.is_ready(claimed.base_digest)
            if failed and is_ready:
                await probes.defer_claim(conn, claimed.adapter_id, claimed.version)
            else:
                await probes.release_claim(conn, claimed.adapter_id, claimed.version, counts=not is_ready)

    async def _set_ready(self, claimed: VersionToProbe, found: msgspec.Struct) -> None:
        probe = msgspec.json.encode(found).decode()
        async with self._database.transaction() as conn:
            ready = await probes.set_ready(conn, claimed.adapter_id, claimed.version, probe)
            if ready is None:
                return  # removed meanwhile, or somebody else was first
            shown = {"name": claimed.name, "version": claimed.version, "digest": claimed.digest}
            await _record(conn, claimed, "adapter_version.ready", after=shown)
            if ready.promoted:
                before, after = {"version": ready.before}, {"version": claimed.version}
                await _record(conn, claimed, "adapter.promoted", before=before, after=after)

    async def _reject(self, claimed: VersionToProbe, reason: str) -> None:
        async with self._database.transaction() as conn:
            if await probes.set_rejected(conn, claimed.adapter_id, claimed.version, reason):
                shown = {"name": claimed.name, "version": claimed.version, "digest": claimed.digest, "reason": reason}
                await _record(conn, claimed, "adapter_version.rejected", after=shown)

    async def _probe_all(self) -> None:
        while await self.probe_waiting():
            pass


async def _record(
    conn: Connection, claimed: VersionToProbe, event: str, *, after: object, before: object = None
) -> None:
    author = audit.Author(
        organization_id=claimed.organization_id, kind="system", id="prober", email=None, address="", request_id=""
    )
    await audit.record(
        conn, author, event, claimed.adapter_id, project_id=claimed.project_id, before=before, after=after
    )
