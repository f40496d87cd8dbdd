"""The demo's second pool: a small base model with random weights and one adapter of it, so that two pools can be seen.

Made once: an operator who removes the pool, the tenant or the adapter does not find them again at the next start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec

from adapters.peft_format import read_adapter
from adapters.stores import open_store
from engine.config import model_digest
from gateway.agent.model import prepare_model
from gateway.db.adapters.adapter_versions import put_adapter
from gateway.db.adapters.contents import store_shared
from gateway.db.organization.audit import Author, record
from gateway.db.organization.organizations import ensure_organization
from gateway.db.organization.projects import find_project
from gateway.db.pool import Database
from gateway.db.pools.pools import had_pool
from gateway.pools.first_pool import ORGANIZATION, make_pool
from gateway.settings import Settings
from gateway.support.accounts import Account

NAME = "random-weights-6m"
"""The name of the demo's second pool: its model has random weights, and answers nothing sensible."""

SOURCE = "demo-random"
TENANT, ADAPTER = "globex", "noise"
ADAPTER_FOLDER = "adapter"
"""The folder of the adapter within the folder of the prepared model."""


def add_second_pool(
    dsn: str, settings: Settings, report: Callable[[str], None], account: Account | None = None
) -> None:
    """Prepare the second model, and make its pool and adapter where there never was such a pool.

    report: gets the progress, line by line. account: the user as which the model is prepared; None: the user of this
    process.

    Raises ModelNotPrepared: when the model cannot be prepared.
    """
    second = msgspec.structs.replace(settings, model=SOURCE, model_name=NAME)
    folder = prepare_model(second, report, account)
    asyncio.run(make_second_pool(dsn, settings, folder))


async def make_second_pool(dsn: str, settings: Settings, folder: Path) -> None:
    """Make the pool of a prepared folder, and the adapter in it, where there never was such a pool."""
    digest = await asyncio.to_thread(model_digest, folder)
    async with await Database.connect(dsn, max_size=1) as database, database.acquire() as conn:
        if await had_pool(conn, NAME):
            return
        organization = await ensure_organization(conn, ORGANIZATION)
        author = Author(
            organization_id=organization.id, kind="system", id="bootstrap", email=None, address="", request_id=""
        )
        engine = settings.engine
        store = open_store(engine.adapter_store, settings.adapter_cache_dir, engine.adapter_cache_bytes)
        adapter = folder / ADAPTER_FOLDER
        file = await asyncio.to_thread(read_adapter, adapter)
        async with store_shared(conn):
            await make_pool(conn, NAME, model=SOURCE, folder=folder, base_digest=digest)
            await record(conn, author, "pool.created", NAME, after={"name": NAME, "model": SOURCE, "num_replicas": 1})
            project = await find_project(conn, organization.id, TENANT)
            if project is None:
                return
            content = await asyncio.to_thread(store.add, adapter)
            row, _ = await put_adapter(
                conn,
                project.id,
                ADAPTER,
                base_digest=digest,
                digest=content,
                rank=file.rank_max,
                size_bytes=store.size_bytes(content),
            )
            shown = {"id": row.id, "name": row.name, "version": row.version, "digest": row.digest}
            await record(conn, author, "adapter.created", row.id, project_id=project.id, after=shown)
