"""The first pool at a start: made of the environment once, and from then on as its rows say."""

from __future__ import annotations

from pathlib import Path

from gateway.db.pool import Database
from gateway.db.pools.served import ServedPool, list_served
from gateway.domain.pools.settings import differences
from gateway.pools.first_pool import ensure_first_pool
from gateway.settings import Settings, variable


async def settle_first_pool(dsn: str, settings: Settings, model_dir: Path, base_digest: str) -> list[str]:
    """Make the pool that the environment describes if the installation never had one.

    Return sentences for people about variables that contradict the oldest pool, whose rows count.
    """
    async with await Database.connect(dsn, max_size=1) as database, database.acquire() as conn:
        await ensure_first_pool(
            conn, settings.model_name, model=settings.model, folder=model_dir, base_digest=base_digest
        )
        pools = [pool for pool in await list_served(conn) if not pool.is_removed]
    return _notes(pools[0], settings) if pools else ["no pool is left: nothing is served until one is created"]


def _notes(pool: ServedPool, settings: Settings) -> list[str]:
    row = pool.row
    revision = pool.revisions[row.wanted_revision]
    found = differences(
        settings.engine,
        revision.engine_settings,
        name=row.name,
        model=revision.model,
        wanted_name=settings.model_name,
        wanted_model=settings.model,
    )
    notes = [
        f"warning: {variable(field)} has no effect: the pool {row.name} was made with {value}, and keeps it"
        for field, value in found.items()
    ]
    foreign = [replica for replica in pool.replicas if replica.host_id is None]
    if foreign and row.num_replicas == 0:
        notes.append(f"the pool {row.name} is served by an engine that runs on its own, at {foreign[0].address}")
    return notes
