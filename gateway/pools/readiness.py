"""The readiness of this gateway: that it can serve requests, and that it has not been told to stop."""

from __future__ import annotations

import asyncio

import structlog

from gateway.db.organization.organizations import installation_id
from gateway.db.pool import UNAVAILABLE, Database
from gateway.pools.live import LivePools

log = structlog.get_logger(__name__)

DATABASE_TIMEOUT_S = 2.0


class GatewayReadiness:
    """The readiness of this gateway, from the database and the pools; missing parts are logged at each change."""

    def __init__(self, database: Database, pools: LivePools) -> None:
        self._database = database
        self._pools = pools
        self._is_leaving = False
        self._logged: dict[str, str] = {}

    @property
    def is_leaving(self) -> bool:
        """Tell whether this gateway is about to stop: it still serves, and wants no new connection."""
        return self._is_leaving

    def leave(self) -> None:
        """Make the gateway not ready from now on, since it is about to stop."""
        self._is_leaving = True

    async def is_ready(self) -> bool:
        """Tell whether new requests should come to this gateway.

        They should while the database answers, some pool has a ready replica or none wants one, and the gateway is not
        about to stop.
        """
        if self._is_leaving:
            return False
        found = {} if self._pools.ready else {pool.name: pool.serving.detail for pool in self._pools.values()}
        if not (found or self._pools.ready):
            found["pools"] = "no model can be served yet"
        if detail := await self._database_detail():
            found["database"] = detail
        if found and found != self._logged:
            log.warning("not_ready", **found)
        self._logged = found
        return not found

    async def _database_detail(self) -> str | None:
        """Return why the database cannot be used; None when it can."""
        try:
            async with asyncio.timeout(DATABASE_TIMEOUT_S), self._database.acquire() as conn:
                await installation_id(conn)
        except UNAVAILABLE as error:
            return f"does not answer ({type(error).__name__})"
        return None
