"""Health of the process: whether it lives, and whether it can serve. No key is asked for, so no more is told; the
log says what is missing."""

from __future__ import annotations

import asyncio
from typing import Literal

import msgspec
import structlog
from litestar import get
from litestar.handlers import HTTPRouteHandler
from litestar.response.base import ASGIResponse

from gateway.db.organization.organizations import installation_id
from gateway.db.pool import UNAVAILABLE, Database
from gateway.http.shape import shape
from gateway.openai.shared.replies import json_response
from gateway.pools.live import LivePools

log = structlog.get_logger(__name__)

DATABASE_TIMEOUT_S = 2.0


class Readiness(msgspec.Struct, frozen=True):
    status: Literal["ready", "not ready"]


def health(database: Database, pools: LivePools) -> list[HTTPRouteHandler]:
    reasons: dict[str, str] = {}  # those that the log has

    @get("/health", opt=shape(media=("text/plain",)))
    async def health_check() -> ASGIResponse:
        """Answer 200 without a body while the process runs, as vLLM does."""
        return ASGIResponse(headers={"content-type": "text/plain"})

    @get("/health/live")
    async def live() -> dict[str, str]:
        """Answer 200 while the process runs."""
        return {"status": "ok"}

    @get("/health/ready", opt=shape(reply=Readiness, statuses={503: Readiness}))
    async def ready() -> ASGIResponse:
        """200 while the database answers and some pool has a ready replica, or none wants one; else 503."""
        nonlocal reasons
        found = {} if pools.ready else {pool.name: pool.serving.detail for pool in pools.values()}
        if not (found or pools.ready):
            found["pools"] = "no model can be served yet"
        if detail := await _database_detail(database):
            found["database"] = detail
        if found and found != reasons:
            log.warning("not_ready", **found)
        reasons = found
        return json_response(Readiness("not ready" if found else "ready"), status=503 if found else 200)

    return [health_check, live, ready]


async def _database_detail(database: Database) -> str | None:
    """Why the database cannot be used; None when it can."""
    try:
        async with asyncio.timeout(DATABASE_TIMEOUT_S), database.acquire() as conn:
            await installation_id(conn)
    except UNAVAILABLE as error:
        return f"does not answer ({type(error).__name__})"
    return None
