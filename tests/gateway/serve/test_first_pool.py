"""The first pool is made from the environment once; a later difference of the environment is named."""

from __future__ import annotations

from pathlib import Path

import msgspec

from gateway.db.adapters.bases import register_base
from gateway.db.pool import Database
from gateway.db.pools import pools, replicas, revisions
from gateway.db.pools.served import list_served
from gateway.serve.first_pool import settle_first_pool
from gateway.settings import ENGINE_DEFAULTS, Settings
from tests.gateway.bases import BASE_DIGEST


async def test_the_first_pool_is_managed_and_made_once(dsn: str, database: Database, tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    assert await settle_first_pool(dsn, settings, tmp_path, BASE_DIGEST) == []
    assert await settle_first_pool(dsn, settings, tmp_path, BASE_DIGEST) == []
    async with database.acquire() as conn:
        [pool] = await list_served(conn)
    assert (pool.row.name, pool.row.num_replicas, pool.replicas) == (settings.model_name, 1, [])


async def test_variables_that_say_otherwise_than_the_rows_are_named(
    dsn: str, database: Database, tmp_path: Path
) -> None:
    await settle_first_pool(dsn, Settings(data_dir=tmp_path, model_name="tiny"), tmp_path, BASE_DIGEST)
    async with database.acquire() as conn:
        [pool] = await list_served(conn)
        await revisions.add_revision(conn, pool.row.id, "demo", {"max_num_seqs": "4"})
        await pools.want_revision(conn, pool.row.id, 2)
    engine = msgspec.structs.replace(ENGINE_DEFAULTS, max_num_seqs=8, max_waiting=9)
    settings = Settings(data_dir=tmp_path, model="org/name", model_name="other", engine=engine)
    assert await settle_first_pool(dsn, settings, tmp_path, BASE_DIGEST) == [
        "warning: LORIKEET_MODEL_NAME has no effect: the pool tiny was made with tiny, and keeps it",
        "warning: LORIKEET_MODEL has no effect: the pool tiny was made with demo, and keeps it",
        "warning: LORIKEET_MAX_NUM_SEQS has no effect: the pool tiny was made with 4, and keeps it",
    ]


async def test_an_engine_that_somebody_else_runs_is_named(dsn: str, database: Database, tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    await settle_first_pool(dsn, settings, tmp_path, BASE_DIGEST)
    async with database.acquire() as conn:
        await register_base(conn, BASE_DIGEST, "tiny")
        [pool] = await list_served(conn)
        await pools.scale_pool(conn, pool.row.id, 0)
        await replicas.add_running_replica(conn, pool.row.id, 1, "ipc:///elsewhere")
    [note] = await settle_first_pool(dsn, settings, tmp_path, BASE_DIGEST)
    assert note.endswith("is served by an engine that runs on its own, at ipc:///elsewhere")
