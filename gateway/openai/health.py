"""Health of the process, for probes from outside: no key is asked for, so no more is shown than the status.

The three probes differ. Startup: the gateway has begun to serve, which it does once it has read its database and its
pools. Live: its event loop turns; a gateway that does not answer is to be ended. Ready: requests should be sent here.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from litestar import get
from litestar.handlers import HTTPRouteHandler
from litestar.response.base import ASGIResponse

from gateway.http.shape import shape
from gateway.openai.shared.replies import json_response
from gateway.pools.readiness import GatewayReadiness


class Readiness(msgspec.Struct, frozen=True):
    """The answer to a probe that asks whether this gateway takes requests."""

    status: Literal["ready", "not ready"]


def health(readiness: GatewayReadiness, version: str) -> list[HTTPRouteHandler]:
    """Return the routes of probes. version: the version of the product."""

    @get("/health", opt=shape(media=("text/plain",)))
    async def health_check() -> ASGIResponse:
        """Answer 200 without a body while the process runs, as vLLM does."""
        return ASGIResponse(headers={"content-type": "text/plain"})

    @get("/health/startup")
    async def startup() -> dict[str, str]:
        """Answer 200 once the gateway has read its database and its pools: before that its port is not open."""
        return {"status": "ok"}

    @get("/health/live")
    async def live() -> dict[str, str]:
        """Answer 200 while the process runs."""
        return {"status": "ok"}

    @get("/health/ready", opt=shape(reply=Readiness, statuses={503: Readiness}))
    async def ready() -> ASGIResponse:
        """Answer 200 while the database answers and a pool has a ready replica, or no pool wants any; else 503.

        Answer 503, too, when the gateway is about to stop.
        """
        is_ready = await readiness.is_ready()
        return json_response(Readiness("ready" if is_ready else "not ready"), status=200 if is_ready else 503)

    @get("/version")
    async def product_version() -> dict[str, str]:
        """Answer with the product's version."""
        return {"version": version}

    return [health_check, startup, live, ready, product_version]
