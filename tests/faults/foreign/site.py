"""A gateway in a process of its own with servers of other makers behind its pools, one tenant, and its ledger."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import msgspec

from gateway.cli.client import tls_for
from gateway.settings import Settings
from tests.gateway.model_folder import make_model_folder
from tests.installation.engines import FakeEngine
from tests.installation.gateway_process import GatewayProcess
from tests.installation.live_gateway import BASE
from tests.installation.tenants import Key, make_key, make_operator_key
from tests.installation.waiting import until
from tests.patience import PATIENCE_S

PASSWORD = "correct horse battery staple"
QUICK: dict[str, Any] = {
    "allow_private": True,
    "health_seconds": 0.2,
    "connect_seconds": 1.0,
    "first_token_seconds": 0.5,
    "idle_seconds": 0.5,
    "total_seconds": 5.0,
}
"""Settings with which a server that does not answer is given up quickly."""


class Row(msgspec.Struct, frozen=True):
    """The usage of one attempt by the ledger, corrections included."""

    request_id: str
    attempt: int
    model: str
    prompt_tokens: int
    completion_tokens: int
    discarded_tokens: int
    finish_reason: str


_ROWS = """
    SELECT request_id, attempt, model, prompt_tokens, completion_tokens, discarded_tokens, finish_reason
    FROM usage_attempts WHERE project_id = $1
"""
_SETTLED = "SELECT coalesce(sum(settled), 0)::bigint FROM limit_accounts WHERE limit_id = $1"
SUPERSEDED = "superseded"


class ForeignSite:
    """The gateway, its own engine, and the keys of an operator and of a tenant."""

    def __init__(self, dsn: str, folder: Path, gateway: GatewayProcess, engine: FakeEngine) -> None:
        self.dsn = dsn
        self.model_dir = folder / "model"
        self.gateway = gateway
        self.engine = engine
        self.key: Key = asyncio.run(make_key(dsn, "acme"))
        self.operator_key = asyncio.run(make_operator_key(dsn))

    @asynccontextmanager
    async def desk(self) -> AsyncIterator[Desk]:
        """Give the clients of the gateway."""
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=200)
        operator = httpx.AsyncClient(
            base_url=f"{self.gateway.url}/v1/organization",
            headers={"authorization": f"Bearer {self.operator_key}"},
            timeout=PATIENCE_S,
            trust_env=False,
            verify=tls_for(self.gateway.url),
        )
        tenant = httpx.AsyncClient(
            base_url=self.gateway.url,
            headers=self.key.headers,
            timeout=PATIENCE_S,
            trust_env=False,
            limits=limits,
            verify=tls_for(self.gateway.url),
        )
        async with operator, tenant:
            yield Desk(self, operator, tenant)


class Desk:
    """The clients of the gateway's operator and tenant."""

    def __init__(self, site: ForeignSite, operator: httpx.AsyncClient, tenant: httpx.AsyncClient) -> None:
        self.site = site
        self.operator = operator
        self.tenant = tenant

    @asynccontextmanager
    async def pool(
        self, name: str, urls: Sequence[str], *, engine: str = "openai", model: str = "", key: str = "", **settings: Any
    ) -> AsyncIterator[str]:
        """Give the id of a pool of servers, all of which take requests; it is removed when the context is left.

        engine: the driver of the servers. key: the key that they ask for; "": none.
        """
        body = {"name": name, "engine": engine, "urls": list(urls), "model": model, "settings": QUICK | settings}
        made = await self.operator.post("/pools", json=body)
        assert made.status_code == 200, made.text
        path = f"/pools/{made.json()['id']}"
        if key:
            assert (await self.operator.post(f"{path}/key", json={"key": key})).status_code == 200
        try:
            await self.until_ready(made.json()["id"], len(urls))
            yield made.json()["id"]
        finally:
            await self.operator.post(f"{path}/drain")

            async def is_removed() -> bool:
                return (await self.operator.delete(path)).status_code == 200

            await until(is_removed, pause_s=0.1)

    async def until_ready(self, pool_id: str, num: int) -> None:
        """Wait until `num` servers of a pool take requests."""

        async def is_ready() -> bool:
            return (await self.operator.get(f"/pools/{pool_id}")).json()["num_ready"] == num  # type: ignore[no-any-return]

        await until(is_ready)

    @asynccontextmanager
    async def route(self, name: str, root: dict[str, Any]) -> AsyncIterator[None]:
        """Give the tenant a route of this name; it is removed when the context is left."""
        path = f"/projects/{self.site.key.project_id}/routes"
        made = await self.operator.post(path, json={"name": name, "document": {"root": root}})
        assert made.status_code == 200, made.text
        try:
            yield
        finally:
            assert (await self.operator.delete(f"{path}/{name}")).status_code == 200

    async def chat(self, model: str, text: str, **fields: Any) -> httpx.Response:
        """Return the reply to a chat of one message, read to its end."""
        body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 16} | fields
        return await self.tenant.post("/v1/chat/completions", json=body)

    async def ledger(self, request_ids: Collection[str]) -> dict[str, list[Row]]:
        """Return all attempts of the requests by request id, superseded attempts included, once every request has an
        attempt and no more appear."""
        found: dict[str, list[Row]] = {}
        before: dict[str, list[Row]] = {}

        async def rows() -> bool:
            before.clear()
            before.update(found)
            found.clear()
            async with open_connection(self.site.dsn) as conn:
                for row in await conn.fetch(_ROWS, self.site.key.project_id):
                    found.setdefault(row["request_id"], []).append(Row(**row))
            return found.keys() >= set(request_ids) and found == before

        await until(rows, lambda: f"in no row: {set(request_ids) - found.keys()}", pause_s=1.0)
        return found

    async def settled(self, *limit_ids: str) -> list[int]:
        """Return the settled amount of each limit, once no limit holds a reservation."""

        async def amounts() -> list[int] | None:
            async with open_connection(self.site.dsn) as conn:
                if await conn.fetchval("SELECT count(*) FROM limit_leases"):
                    return None
                return [await conn.fetchval(_SETTLED, each) for each in limit_ids]

        return await until(amounts, "something is held of a limit", pause_s=0.2)


@asynccontextmanager
async def open_connection(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    conn = await asyncpg.connect(dsn)
    try:
        yield conn
    finally:
        await conn.close()


@contextmanager
def running_site(dsn: str, folder: Path, **settings: Any) -> Iterator[ForeignSite]:
    """Give a site over a migrated database, which is gone when the context is left."""
    model_dir = make_model_folder(folder / "model")
    made = Settings(
        data_dir=folder, model=str(model_dir), model_name=BASE, drain_seconds=5.0, max_failed_keys=0, **settings
    )
    made.run_dir.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        engine = FakeEngine(made.engine.endpoint, model_dir)
        stack.callback(engine.stop)
        gateway = GatewayProcess(made, dsn)
        stack.callback(gateway.close)
        gateway.start()
        gateway.wait_ready()
        yield ForeignSite(dsn, folder, gateway, engine)
