"""The models of all pools: each wanted one is prepared and measured, in one task for each revision.

Knows nothing of replicas and engines.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import structlog

from engine.config import UnsupportedModel
from gateway.agent.hardware import Hardware
from gateway.agent.model import ModelNotPrepared
from gateway.agent.preparation import Prepared, measure, prepare
from gateway.agent.servers.adapters import files_folder, num_file_bytes, write_files
from gateway.agent.servers.plan import store_of
from gateway.db.adapters.bases import live_contents, register_base
from gateway.db.pool import FAILURES, Database
from gateway.db.pools import revisions
from gateway.db.pools.host_failures import clear_failure, may_others_prepare, note_failure
from gateway.db.pools.hosts import list_hosts
from gateway.db.pools.planning import host_of, needs_of
from gateway.db.pools.revisions import RevisionRow
from gateway.db.pools.served import ServedPool
from gateway.domain.pools.capacity import Estimate, FreeMemory
from gateway.domain.pools.drivers import PRELOADED
from gateway.domain.pools.unfit import unfit_refusal
from gateway.routing.adapter_fits import FitCache
from gateway.settings import Settings

if TYPE_CHECKING:
    from gateway.db.pool import Connection

RETRY_S, MAX_RETRY_S = 5.0, 3600.0
"""The first and the longest pause, in seconds, from the beginning of a failed preparation to that of the next. Each
further failure doubles the pause."""

log = structlog.get_logger(__name__)


class Models:
    """Prepares and measures the models of all pools for one host.

    changed: called when rows are to be read again.
    """

    def __init__(
        self, database: Database, settings: Settings, hardware: Hardware, host_id: str, changed: Callable[[], None]
    ) -> None:
        self._database = database
        self._host_id = host_id
        self._settings = settings
        self._hardware = hardware
        self._changed = changed
        self._preparing: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._not_before_s: dict[tuple[str, int], float] = {}
        self._fits = FitCache(store_of(settings), settings.engine.max_adapter_rank)
        self._measured: set[tuple[str, int]] = set()
        self._failures = dict[tuple[str, int], str]()
        self._num_failures = dict[tuple[str, int], int]()

    async def measure(self, pools: Sequence[ServedPool]) -> None:
        """Store the memory that replicas of prepared revisions take on this host, once for each revision.

        This host's settings may have changed since the last agent did so.

        Raises one of `gateway.db.pool.FAILURES`: when the database fails.
        """
        for pool in pools:
            for each in pool.revisions.values():
                key = each.pool_id, each.revision
                if each.folder is not None and each.is_managed and key not in self._measured:
                    await self._measure_memory(each, is_served=pool.row.revision == each.revision)
                    self._measured.add(key)

    def prepare(self, pools: Sequence[ServedPool]) -> None:
        """Begin to prepare the revisions that are due.

        These are wanted ones that are not prepared, those whose preparation failed on this host, and those whose folder
        is gone.
        """
        for pool in pools:
            wanted = pool.revisions.get(pool.row.wanted_revision)
            if wanted is not None and wanted.state == "preparing" and not pool.is_removed:
                self._begin_preparation(pool, wanted)
            for each in pool.revisions.values():
                is_used = each.state == "prepared" and not pool.is_removed
                if not is_used or each.folder is None:
                    continue
                if (each.pool_id, each.revision) in self._num_failures or not Path(each.folder).exists():
                    self._begin_preparation(pool, each)

    async def fitting(self, conn: Connection, pools: Sequence[ServedPool]) -> dict[str, set[str]]:
        """Return the digests of the adapters that fit the new base of each pool that changes its base, by pool id."""
        try:
            return await self._fits.fitting(conn, pools)
        except (OSError, UnsupportedModel, ValueError) as error:
            log.warning("adapters_not_inspected", error=str(error))
            return {}

    def last_failure(self, revision: RevisionRow) -> str:
        """Return why the last attempt to prepare a revision's model on this host failed; "" if it did not fail."""
        return self._failures.get((revision.pool_id, revision.revision), "")

    async def stop(self) -> None:
        """End the preparations that are under way; the next agent goes on with them."""
        for task in self._preparing.values():
            task.cancel()
        await asyncio.gather(*self._preparing.values(), return_exceptions=True)

    def _begin_preparation(self, pool: ServedPool, revision: RevisionRow) -> None:
        key = revision.pool_id, revision.revision
        if key not in self._preparing and _now_s() >= self._not_before_s.get(key, 0.0):
            self._not_before_s[key] = _now_s() + RETRY_S
            self._preparing[key] = asyncio.create_task(self._prepare(pool, revision))

    async def _measure_memory(self, revision: RevisionRow, *, is_served: bool) -> None:
        try:
            folder, files = Path(str(revision.folder)), self._files_of(revision)
            found = await asyncio.to_thread(measure, folder, self._settings.engine, revision, self._hardware, files)
        except (OSError, ValueError) as error:
            log.warning("revision_not_measured", pool=revision.pool_id, revision=revision.revision, error=str(error))
            return
        async with self._database.acquire() as conn:
            await revisions.set_num_bytes(conn, revision.pool_id, revision.revision, found.num_bytes)
            refusal = await _refusal(conn, revision, found)
            if refusal is not None and not is_served:
                await revisions.set_revision_state(conn, revision.pool_id, revision.revision, "failed", refusal)

    async def _prepare(self, pool: ServedPool, revision: RevisionRow) -> None:
        """Prepare a revision.

        If the database goes away meanwhile, the preparation is begun again later, and is fast then.
        """
        name = pool.row.name
        try:
            await self._prepare_and_record(pool, revision)
            for failed in (self._num_failures, self._failures):
                failed.pop((revision.pool_id, revision.revision), None)
        except ModelNotPrepared as error:
            log.warning("revision_not_prepared", pool=name, revision=revision.revision, error=str(error))
            self._failures[revision.pool_id, revision.revision] = str(error)
            await self._fail(revision, str(error))
        except FAILURES as error:
            log.warning("database_away", error=str(error) or type(error).__name__)
        finally:
            del self._preparing[revision.pool_id, revision.revision]
            self._changed()

    async def _prepare_and_record(self, pool: ServedPool, revision: RevisionRow) -> None:
        """Prepare a revision, and note in its row that it is prepared, or why it cannot serve.

        Raises ModelNotPrepared: when the model cannot be prepared.
        Raises one of `gateway.db.pool.FAILURES`: when the database fails.
        """

        async def report(line: str) -> None:
            with contextlib.suppress(*FAILURES):
                async with self._database.acquire() as conn:
                    await revisions.set_progress(conn, revision.pool_id, revision.revision, line)

        made = await prepare(self._settings, self._hardware, revision, report)
        name, unfit = pool.row.name, []
        estimate, started_with = made.estimate, list[str]()
        if revision.starts_servers and revision.driver in PRELOADED:
            files = await self._adapter_files(made)
            started_with = [each.stem for each in files]
            estimate = msgspec.structs.replace(estimate, adapters=num_file_bytes(files))
        if revision.is_managed and not revision.allow_unfit_adapters:
            async with self._database.acquire() as conn:
                unfit = await self._fits.misfits(conn, pool, revision.engine_settings, made.folder, made.base_digest)
        async with self._database.transaction() as conn:
            await clear_failure(conn, self._host_id, revision.pool_id, revision.revision)
            if revision.state == "prepared":
                await revisions.set_folder(
                    conn, revision.pool_id, revision.revision, str(made.folder), made.base_digest
                )
                return
            refusal = await _refusal(conn, revision, estimate) if revision.is_managed else None
            if refusal is not None:
                raise ModelNotPrepared(refusal)
            await register_base(conn, made.base_digest, name)
            await revisions.set_prepared(
                conn,
                revision.pool_id,
                revision.revision,
                folder=str(made.folder),
                base_digest=made.base_digest,
                num_bytes=estimate.num_bytes if revision.is_managed else None,
                adapters=started_with,
            )
            if unfit:
                why = unfit_refusal(unfit)
                await revisions.set_revision_state(conn, revision.pool_id, revision.revision, "failed", why)
                log.warning("adapters_do_not_fit", pool=name, revision=revision.revision, num_adapters=len(unfit))
                return
        log.info("revision_prepared", pool=name, revision=revision.revision, needs=str(estimate))

    async def _adapter_files(self, made: Prepared) -> list[Path]:
        """Write the adapters of a base as files with which a server is started, and return the files.

        The adapters are those that answer, or are about to. An adapter that cannot be written is left out, and the log
        says why.
        """
        async with self._database.acquire() as conn:
            digests = sorted({each.digest for each in await live_contents(conn, made.base_digest)})
        where = files_folder(self._settings.data_dir, made.base_digest)
        files, _ = await asyncio.to_thread(write_files, store_of(self._settings), made.folder, digests, where)
        return files

    def _files_of(self, revision: RevisionRow) -> list[Path]:
        if revision.base_digest is None:
            return []
        where = files_folder(self._settings.data_dir, revision.base_digest)
        return [where / f"{digest}.gguf" for digest in revision.adapters]

    async def _fail(self, revision: RevisionRow, why: str) -> None:
        """Record that this host could not prepare a revision, and leave the host out until a later attempt succeeds.

        Give the revision up where no other host may prepare it.
        """
        failures = self._num_failures.get((revision.pool_id, revision.revision), 0)
        self._num_failures[revision.pool_id, revision.revision] = failures + 1
        retry_s = retry_pause_s(failures)
        self._not_before_s[revision.pool_id, revision.revision] = _now_s() + retry_s
        retry_after = datetime.timedelta(seconds=retry_s)
        key = self._host_id, revision.pool_id, revision.revision
        with contextlib.suppress(*FAILURES):
            async with self._database.acquire() as conn:
                await note_failure(conn, *key, why, retry_after)
                if revision.state == "preparing" and not await may_others_prepare(conn, *key):
                    await revisions.set_revision_state(conn, revision.pool_id, revision.revision, "failed", why)


def retry_pause_s(num_failures: int) -> float:
    """Return the seconds until a failed preparation is begun again.

    num_failures: failures in a row before this one.
    """
    return min(RETRY_S * float(2 ** min(num_failures, 10)), MAX_RETRY_S)


async def _refusal(conn: Connection, revision: RevisionRow, found: Estimate) -> str | None:
    """Return why no host could hold a replica even if nothing else ran there; None if one could."""
    room = FreeMemory([msgspec.structs.replace(host_of(row), is_drained=False) for row in await list_hosts(conn)])
    needs = msgspec.structs.replace(needs_of(revision), num_bytes=found.num_bytes)
    return room.refusal(needs, str(found)) if room.find(needs) is None else None


def _now_s() -> float:
    return asyncio.get_running_loop().time()
