"""Replicas over HTTP: the engines of pools, each drained or restarted by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from litestar import Controller, Request, get, post
from litestar.params import FromPath

from gateway.admin.access import LIST_QUERY, needs
from gateway.admin.common import audit_author
from gateway.admin.paging import Page, page_of_all, read_list_query
from gateway.admin.pools.pool_wire import Replica, replica_wire
from gateway.admin.pools.pools import only_pool
from gateway.admin.services import AdminServices, Caller, Services
from gateway.db.organization import audit
from gateway.db.pools import managed, pools, replicas
from gateway.db.pools.hosts import list_hosts
from gateway.domain.errors import Conflict, NotFound

if TYPE_CHECKING:
    from gateway.db.pool import Connection


class ReplicaController(Controller):
    """Endpoints for the replicas of pools."""

    path = "/replicas"

    @get(opt=needs("pools.read", query=(*LIST_QUERY, "pool_id")))
    async def list_replicas(self, request: Request[Any, Any, Any], services: Services, caller: Caller) -> Page[Replica]:
        """List replicas that have not been stopped, by pool: of one pool, or of all pools of the organization."""
        query, pool_id = read_list_query(request.query_params), request.query_params.get("pool_id")
        async with services.database.acquire() as conn:
            found = await managed.list_at_once(conn, caller.organization_id, pool_id)
            if pool_id is not None:
                only_pool(found, pool_id)
            hosts = {each.id: each.name for each in await list_hosts(conn)}
        healths = services.replica_healths()
        shown = [replica_wire(each, pool.row.name, hosts, healths) for pool in found for each in pool.replicas]
        return page_of_all(shown, query)

    @post("/{replica_id:str}/drain", status_code=200, opt=needs("pools.write"))
    async def drain_replica(self, replica_id: FromPath[str], services: Services, caller: Caller) -> Replica:
        """Let this replica end its requests and stop. Its pool runs one replica less from now on."""
        async with services.database.transaction() as conn:
            pool, before = await _existing_replica(services, conn, caller.organization_id, replica_id)
            if before.state in ("draining", "stopped"):
                return before
            if pool.revision is not None and pool.revision != pool.wanted_revision:
                raise Conflict(
                    f"The pool changes to revision {pool.wanted_revision}, which decides what its replicas do: wait "
                    "for the end of the change, or cancel it."
                )
            if before.host_id is not None and pool.num_replicas > 0:
                await pools.scale_pool(conn, pool.id, pool.num_replicas - 1)
            await replicas.drain_replicas(conn, [replica_id], "An operator drained it.")
            changed, after = await _existing_replica(services, conn, caller.organization_id, replica_id)
            shown = [
                msgspec.structs.asdict(replica) | {"num_replicas": row.num_replicas}
                for replica, row in ((before, pool), (after, changed))
            ]
            await audit.record(
                conn, audit_author(caller), "replica.drained", replica_id, before=shown[0], after=shown[1]
            )
        return after

    @post("/{replica_id:str}/restart", status_code=200, opt=needs("pools.write"))
    async def restart_replica(self, replica_id: FromPath[str], services: Services, caller: Caller) -> Replica:
        """Have another replica take the place of this one, ready before this one drains where both fit on the hosts."""
        async with services.database.transaction() as conn:
            _, before = await _existing_replica(services, conn, caller.organization_id, replica_id)
            if before.replace:
                return before
            if before.host_id is None:
                raise Conflict("No agent runs this replica: whoever started its engine has to restart it.")
            if before.state in ("draining", "stopped"):
                raise Conflict(f"The replica is {before.state}; the pool starts another one if it wants more.")
            await replicas.replace_replicas(conn, [replica_id])
            _, after = await _existing_replica(services, conn, caller.organization_id, replica_id)
            await audit.record(conn, audit_author(caller), "replica.restarted", replica_id, before=before, after=after)
        return after


async def _existing_replica(
    services: AdminServices, conn: Connection, organization_id: str, replica_id: str
) -> tuple[pools.PoolRow, Replica]:
    """Return a replica and its pool, which is locked.

    Raises NotFound: when no replica of the organization's pools has this id.
    """
    row = await replicas.find_replica(conn, organization_id, replica_id)
    pool = await managed.lock_whole_pool(conn, organization_id, row.pool_id) if row else None
    if row is None or pool is None:
        raise NotFound(f"There is no replica with the id '{replica_id}'.", param="replica_id")
    hosts = {each.id: each.name for each in await list_hosts(conn)}
    fresh = await replicas.find_replica(conn, organization_id, replica_id)
    return pool, replica_wire(fresh or row, pool.name, hosts, services.replica_healths())
