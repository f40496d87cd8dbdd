"""The first pool of an installation, which the environment describes. From then on its row counts.

Knows neither engines nor who starts them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.db.adapters.bases import adopt_adapters, register_base
from gateway.db.organization.organizations import ensure_organization, first_organization
from gateway.db.pool import Database
from gateway.db.pools.pools import create_pool, had_pools, lock_pools
from gateway.db.pools.replicas import add_running_replica
from gateway.db.pools.revisions import add_revision, set_prepared
from gateway.db.pools.served import ServedPool, list_served, switch_revision
from gateway.settings import Settings
from gateway.support.model_folders import on_this_machine

if TYPE_CHECKING:
    from gateway.db.pool import Connection

ORGANIZATION = "default"
"""The name that the organization of a new installation gets."""


async def make_pool(
    conn: Connection,
    name: str,
    *,
    model: str,
    folder: Path,
    base_digest: str,
    num_bytes: int | None = None,
    settings: Mapping[str, str] | None = None,
    address: str | None = None,
    public_key: str | None = None,
    num_replicas: int = 1,
) -> bool:
    """Make a pool of a prepared model, in the caller's transaction; return whether the name was free.

    address: the ZeroMQ endpoint of an engine that somebody else runs, which becomes the pool's only replica; None
    leaves num_replicas of them to the agents. public_key: the key that this engine proves, where it is on TCP.
    num_bytes: the bytes of the model's weights; None: not known. settings: the settings of its engines; None: those of
    the hosts.
    """
    organization = await first_organization(conn) or await ensure_organization(conn, ORGANIZATION)
    num_managed = num_replicas if address is None else 0
    pool = await create_pool(conn, organization.id, name, num_replicas=num_managed)
    if pool is None:
        return False
    revision = await add_revision(conn, pool.id, model, settings or {})
    await register_base(conn, base_digest, name)
    await set_prepared(
        conn, pool.id, revision.revision, folder=str(folder), base_digest=base_digest, num_bytes=num_bytes
    )
    if address is not None:
        await add_running_replica(conn, pool.id, revision.revision, address, public_key)
        await switch_revision(conn, pool.id, revision.revision)
    return True


async def ensure_first_pool(
    conn: Connection, name: str, *, model: str, folder: Path, base_digest: str, address: str | None = None
) -> bool:
    """Make the pool that the environment describes where the installation never had one; return whether it was made.

    Adapters that were added before their base was recorded become adapters of the pool's base.

    address: the ZeroMQ endpoint of an engine that somebody else runs, which becomes the pool's only replica; None
    leaves one replica to the agents.
    """
    async with conn.transaction():
        await lock_pools(conn)
        if await had_pools(conn):
            return False
        await make_pool(conn, name, model=model, folder=folder, base_digest=base_digest, address=address)
        await adopt_adapters(conn, base_digest)
        return True


async def needs_model(dsn: str, settings: Settings) -> bool:
    """Tell whether a gateway has to prepare the model of its settings.

    That is so for the first pool, and for a pool whose model this machine lacks.

    Raises one of `gateway.db.pool.UNUSABLE`: when the connection string or the schema is wrong.
    Raises one of `gateway.db.pool.UNAVAILABLE`: when the database cannot be reached.
    """
    async with await Database.connect(dsn, max_size=1) as database, database.acquire() as conn:
        if not await had_pools(conn):
            return True
        served = await list_served(conn)
    return _lacks_folder(settings, served)


def _lacks_folder(settings: Settings, served: Sequence[ServedPool]) -> bool:
    """Tell whether a pool serves the model of these settings and its folder is not on this machine."""
    here = (on_this_machine(each, settings) for each in served)
    folders = (each.folder for pool in here for each in pool.revisions.values() if each.model == settings.model)
    return any(folder is None or not Path(folder).is_dir() for folder in folders)


async def want_first_pool(conn: Connection, name: str, *, model: str, num_replicas: int) -> bool:
    """Make a pool of a model that agents prepare, where the installation never had one; return whether it was made.

    Unlike `ensure_first_pool`, this needs no prepared model, and leaves all replicas to agents. May be called in a
    transaction.
    """
    async with conn.transaction():
        await lock_pools(conn)
        if await had_pools(conn):
            return False
        organization = await first_organization(conn) or await ensure_organization(conn, ORGANIZATION)
        pool = await create_pool(conn, organization.id, name, num_replicas=num_replicas)
        assert pool is not None, "there is no other pool"
        await add_revision(conn, pool.id, model, {})
        return True
