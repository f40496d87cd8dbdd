"""The key that the servers of a pool of another maker ask for: set and removed, never shown."""

from __future__ import annotations

from typing import Any

from litestar import Controller, Request, delete, post
from litestar.params import FromPath

from gateway.admin.access import needs, read_body
from gateway.admin.common import audit_author, unix_seconds
from gateway.admin.pools.pool_bodies import SetBackendKey
from gateway.admin.pools.pool_wire import DeletedPoolKey, PoolKey
from gateway.admin.services import Caller, Services
from gateway.db.organization import audit
from gateway.db.pools.backend_keys import find_backend_key, remove_backend_key
from gateway.db.pools.managed import list_managed
from gateway.db.pools.pools import lock_pool_by_id
from gateway.domain.errors import Conflict, NotFound


class PoolKeyController(Controller):
    """Endpoints for the key that the servers of a pool ask for."""

    path = "/pools"

    @post("/{pool_id:str}/key", status_code=200, opt=needs("pools.write", body=SetBackendKey))
    async def set_pool_key(
        self, pool_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> PoolKey:
        """Set the key that the pool's servers ask for, in place of the one before. Gateways use it within seconds."""
        wanted = await read_body(request, SetBackendKey)
        async with services.database.transaction() as conn:
            pool = await lock_pool_by_id(conn, caller.organization_id, pool_id)
            if pool is None:
                raise NotFound(f"There is no pool with the id '{pool_id}'.", param="pool_id")
            (served,) = await list_managed(conn, caller.organization_id, pool_id)
            if served.revisions[pool.wanted_revision].is_managed:
                raise Conflict("Agents start the engines of this pool, and make what keys they need.", param="pool_id")
            before = await find_backend_key(conn, pool_id)
            await services.backend_keys.keep(conn, pool_id, wanted.key)
            key_row = await find_backend_key(conn, pool_id)
            assert key_row is not None
            await audit.record(
                conn,
                audit_author(caller),
                "pool.key_set",
                pool_id,
                before=None if before is None else {"hint": before.hint},
                after={"hint": key_row.hint},
            )
        return PoolKey(pool_id, key_row.hint, unix_seconds(key_row.created_at))

    @delete("/{pool_id:str}/key", status_code=200, opt=needs("pools.write"))
    async def remove_pool_key(self, pool_id: FromPath[str], services: Services, caller: Caller) -> DeletedPoolKey:
        """Forget the key that the pool's servers ask for."""
        async with services.database.transaction() as conn:
            if await lock_pool_by_id(conn, caller.organization_id, pool_id) is None:
                raise NotFound(f"There is no pool with the id '{pool_id}'.", param="pool_id")
            before = await find_backend_key(conn, pool_id)
            if before is None:
                raise NotFound("The pool has no key.", param="pool_id")
            await remove_backend_key(conn, pool_id)
            await audit.record(conn, audit_author(caller), "pool.key_removed", pool_id, before={"hint": before.hint})
        return DeletedPoolKey(pool_id)
