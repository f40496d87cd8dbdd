"""The adapters of pools whose servers load adapters only when they start, and a new start with all adapters."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Literal

import msgspec
from litestar import Controller, get, post
from litestar.params import FromPath

from gateway.admin.access import needs
from gateway.admin.common import audit_author
from gateway.admin.services import Caller, Services
from gateway.db.adapters.bases import LiveContent, live_contents
from gateway.db.organization import audit
from gateway.db.pools import pools, revisions
from gateway.db.pools.managed import list_at_once, list_managed, lock_whole_pool
from gateway.db.pools.planning import needs_of, read_pools_and_hosts
from gateway.db.pools.revisions import RevisionRow
from gateway.db.pools.served import ServedPool
from gateway.domain.errors import Conflict, NotFound
from gateway.domain.pools.drivers import PRELOADED
from gateway.domain.pools.plan import NoRoom, Rollout, rollout_to

if TYPE_CHECKING:
    from gateway.db.pool import Connection


class PoolAdapter(msgspec.Struct, frozen=True):
    """A version of a tenant's adapter."""

    name: str
    """The names of the tenant and the adapter, and the version, as in `acme:support@2`."""
    digest: str
    """The digest of the content."""


class PoolAdapters(msgspec.Struct, frozen=True, kw_only=True):
    """The adapters of a pool whose servers take them at their start alone."""

    pool_id: str
    loaded: list[PoolAdapter]
    """Adapters with which the servers of the revision that serves were started."""
    waiting: list[PoolAdapter]
    """Adapters of the base that the servers do not have: they answer once the servers are started anew, if they
    can be written in the servers' format."""
    num_removed: int
    """Adapters that tenants have removed and that the servers still have."""
    num_replicas: int
    """Number of replicas that would be started anew."""
    rollout: Rollout | None
    """The way in which a start with all adapters replaces the replicas: `side by side`, so that nobody notices, or `one
    after the other`, where both do not fit on the hosts. Null where no replica would find a place."""
    revision: int | None
    """The number of the revision that serves."""
    wanted_revision: int
    """The number of the revision that is to serve; another one than `revision` while a change is under way."""
    object: Literal["organization.pool.adapters"] = "organization.pool.adapters"


class PoolAdapterController(Controller):
    """Endpoints for the adapters of a pool whose servers load adapters only at their start."""

    path = "/pools"

    @get("/{pool_id:str}/adapters", opt=needs("pools.read"))
    async def get_pool_adapters(self, pool_id: FromPath[str], services: Services, caller: Caller) -> PoolAdapters:
        """Show the adapters that the servers of a pool were started with, and the adapters that wait for a start."""
        async with services.database.acquire() as conn:
            found = await list_at_once(conn, caller.organization_id, pool_id)
            return await _wire(conn, _only_pool(found, pool_id))

    @post("/{pool_id:str}/adapters", status_code=200, opt=needs("pools.write"))
    async def load_pool_adapters(self, pool_id: FromPath[str], services: Services, caller: Caller) -> PoolAdapters:
        """Start the servers of a pool anew with the adapters that tenants have now.

        A new revision of the same model and settings is made, which serves once its replicas are ready. Nothing happens
        where the servers have all adapters.
        """
        async with services.database.transaction() as conn:
            await pools.lock_pools(conn)
            await lock_whole_pool(conn, caller.organization_id, pool_id)
            before = _only_pool(await list_managed(conn, caller.organization_id, pool_id), pool_id)
            shown = await _wire(conn, before)
            present = before.revisions[before.row.wanted_revision]
            if not shown.waiting and not shown.num_removed:
                return shown
            if present.state == "preparing":
                raise Conflict("A change of the pool is being prepared. Its replicas start with all adapters.")
            made = await revisions.add_revision(
                conn, pool_id, present.model, present.settings, driver=present.driver, starts_servers=True
            )
            if present.revision != before.row.revision and present.state != "failed":
                why = f"Revision {made.revision} took its place before it served."
                await revisions.set_revision_state(conn, pool_id, present.revision, "retired", why)
            await pools.want_revision(conn, pool_id, made.revision)
            counts = {"num_waiting": len(shown.waiting), "num_removed": shown.num_removed}
            await audit.record(conn, audit_author(caller), "pool.adapters_loaded", pool_id, after=counts)
            return msgspec.structs.replace(shown, wanted_revision=made.revision)


def _only_pool(found: list[ServedPool], pool_id: str) -> ServedPool:
    """Return the single pool of a search's result, whose servers agents start with adapters.

    Raises NotFound: when there is no pool.
    Raises Conflict: when the pool's servers take adapters without a start.
    """
    if not found:
        raise NotFound(f"There is no pool with the id '{pool_id}'.", param="pool_id")
    revision = found[0].revisions[found[0].row.wanted_revision]
    if not revision.starts_servers or revision.driver not in PRELOADED:
        raise Conflict(
            "Only servers that agents start, and that take adapters at their start alone, can be started anew.",
            param="pool_id",
        )
    return found[0]


async def _wire(conn: Connection, pool: ServedPool) -> PoolAdapters:
    serving = pool.revisions[pool.row.revision or pool.row.wanted_revision]
    live = await live_contents(conn, serving.base_digest) if serving.base_digest else []
    digests = {each.digest for each in live}
    return PoolAdapters(
        pool_id=pool.row.id,
        loaded=[_adapter(each) for each in live if each.digest in serving.adapters],
        waiting=[_adapter(each) for each in live if each.digest not in serving.adapters],
        num_removed=_num_removed(serving, digests),
        num_replicas=pool.row.num_replicas,
        rollout=await _rollout(conn, pool, serving),
        revision=pool.row.revision,
        wanted_revision=pool.row.wanted_revision,
    )


def _num_removed(serving: RevisionRow, digests: Collection[str]) -> int:
    return sum(digest not in digests for digest in serving.adapters)


def _adapter(content: LiveContent) -> PoolAdapter:
    return PoolAdapter(content.name, content.digest)


async def _rollout(conn: Connection, pool: ServedPool, serving: RevisionRow) -> Rollout | None:
    """Return the way in which a new revision would replace a pool's replicas; None where no host has room.

    Raises NotFound: when the pool was removed since it was read.
    """
    world = await read_pools_and_hosts(conn)
    if not any(each.id == pool.row.id for each in world[0]):
        raise NotFound(f"There is no pool with the id '{pool.row.id}'.", param="pool_id")
    try:
        return rollout_to(*world, pool.row.id, needs_of(serving))
    except NoRoom:
        return None
