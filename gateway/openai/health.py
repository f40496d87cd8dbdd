"""Whether the process lives, whether it can serve, and its metrics. No key is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
from litestar import get
from litestar.handlers import HTTPRouteHandler
from litestar.response.base import ASGIResponse
from prometheus_client import CONTENT_TYPE_LATEST

from gateway.backends.pool import Pool
from gateway.db.organization.organizations import installation_id
from gateway.db.pool import UNAVAILABLE, Database
from gateway.http.shape import shape
from gateway.observability.metrics import Metrics
from gateway.openai.shared.replies import json_response

DATABASE_TIMEOUT_S = 2.0


class Readiness(msgspec.Struct, frozen=True):
    """database and each pool: "ready", or why not."""

    status: str
    database: str
    pools: dict[str, str]


def health(database: Database, pools: Sequence[Pool], metrics: Metrics) -> list[HTTPRouteHandler]:
    @get("/health", opt=shape(media=("text/plain",)))
    async def health_check() -> ASGIResponse:
        """The process lives: 200 without a body, as vLLM answers."""
        return ASGIResponse(headers={"content-type": "text/plain"})

    @get("/health/live")
    async def live() -> dict[str, str]:
        """The process lives."""
        return {"status": "ok"}

    @get("/health/ready", opt=shape(reply=Readiness, statuses={503: Readiness}))
    async def ready() -> ASGIResponse:
        """200 once the database answers and every pool has a ready backend, else 503; says what is missing."""
        database_detail = await _database_detail(database)
        details = {pool.name: _pool_detail(pool) for pool in pools}
        is_ready = database_detail is None and all(pool.ready for pool in pools)
        body = Readiness("ready" if is_ready else "not ready", database_detail or "ready", details)
        return json_response(body, status=200 if is_ready else 503)

    @get("/metrics", opt=shape(media=("text/plain",)))
    async def prometheus() -> ASGIResponse:
        """Metrics, as Prometheus reads them."""
        return ASGIResponse(body=metrics.render(), headers={"content-type": CONTENT_TYPE_LATEST})

    return [health_check, live, ready, prometheus]


def _pool_detail(pool: Pool) -> str:
    return "ready" if pool.ready else "; ".join(backend.health().detail for backend in pool.backends)


async def _database_detail(database: Database) -> str | None:
    """Why the database cannot be used; None when it can."""
    try:
        async with asyncio.timeout(DATABASE_TIMEOUT_S), database.acquire() as conn:
            await installation_id(conn)
    except UNAVAILABLE as error:
        return f"does not answer ({type(error).__name__})"
    return None
