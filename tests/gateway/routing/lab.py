"""A tenant with an experiment on the two gateways of the tests of routing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncpg
import httpx
import msgspec

from engine.protocol import GenerateRequest
from gateway.content.keys import content_keys
from gateway.db.pool import Database
from gateway.domain.experiments.assignment import unit_digest
from gateway.experiments.keys import ProjectKeys
from gateway.support.cipher import Cipher
from tests.gateway.experiments.making import ArmOf, StartedExperiment, start_experiment
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from tests.gateway.routing.conftest import City, Tenant

ARMS = (ArmOf("control", "bot", 1), ArmOf("warm", "bot", 2))
CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
HEADER = "x-lorikeet-experiment"


class Lab(msgspec.Struct, frozen=True):
    """A tenant with an experiment, and a client of each gateway."""

    city: City
    tenant: Tenant
    clients: list[httpx.AsyncClient]

    async def start(self, arms: tuple[ArmOf, ...] = ARMS, **fields: Any) -> StartedExperiment:
        async with self.connected() as conn:
            return await start_experiment(conn, self.tenant.project_id, arms, **fields)

    async def ask(self, unit: str | None, path: str = CHAT, gateway: int = 0, **fields: Any) -> httpx.Response:
        """Send a request to the experiment; return the reply. The field `headers` holds headers.

        unit: the unit of the request; None: it names none. gateway: the index of the gateway.
        """
        prompt: dict[str, Any] = {COMPLETIONS: {"prompt": "hello"}, EMBEDDINGS: {"input": "hello"}}.get(
            path, {"messages": [{"role": "user", "content": "hello"}]}
        )
        headers = fields.pop("headers", {})
        tokens = {} if path == EMBEDDINGS else {"max_tokens": 2}
        user = {} if unit is None else {"user": unit}
        body = {"model": "support-bot"} | prompt | tokens | user | fields
        return await self.clients[gateway].post(path, json=body, headers=headers)

    async def until(self, told: str, unit: str, gateway: int = 0) -> httpx.Response:
        """Send requests of a unit until the header HEADER of a reply contains the text `told`; return that reply."""
        async with asyncio.timeout(PATIENCE_S):
            while told not in (reply := await self.ask(unit, gateway=gateway)).headers[HEADER]:
                pass
        return reply

    async def copied(self) -> None:
        """Wait until no copy of a request runs or waits, since a copy is dropped when too many others wait."""
        async with asyncio.timeout(PATIENCE_S):
            while any(gateway.is_copying for gateway in self.city.gateways):  # noqa: ASYNC110 - no event tells
                await asyncio.sleep(0.005)

    async def rows(self, table: str, least: int = 1) -> list[asyncpg.Record]:
        """Wait until a table has `least` rows of the project, and return them."""
        of = "project_id = $1"
        if table in ("experiment_units", "experiment_reasons", "experiment_sums"):
            of = "experiment_id IN (SELECT id FROM experiments WHERE project_id = $1)"
        async with asyncio.timeout(PATIENCE_S):
            while True:
                found = await self.city.fetch(f"SELECT * FROM {table} WHERE {of}", self.tenant.project_id)
                if len(found) >= least:
                    return found
                await asyncio.sleep(0.05)

    async def digests(self, *units: str) -> dict[bytes, str]:
        """Return the units by their digests under the project's secret."""
        return {unit_digest(await self.key(), unit): unit for unit in units}

    async def key(self) -> bytes:
        """Return the secret of the project's units."""
        async with await Database.connect(self.city.dsn) as database:
            keys = content_keys(None, self.city.gateways[0].settings.content_key_path)
            return await ProjectKeys(database, Cipher(keys)).key(self.tenant.project_id)

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[asyncpg.Connection]:
        conn = await asyncpg.connect(self.city.dsn)
        try:
            yield conn
        finally:
            await conn.close()

    def request(self, reply: httpx.Response) -> GenerateRequest:
        """Return the request that the engine received for a reply."""
        return self.city.engine.request(reply.headers["x-request-id"])


def arm_of(reply: httpx.Response) -> str:
    """Return the arm that a reply's header names."""
    assert reply.status_code == 200, reply.text
    name, version, arm, reason = reply.headers[HEADER].split(";")
    assert (name, version, reason) == ('"support-tone"', "v=1", "reason=split")
    return str(arm.removeprefix('arm="').removesuffix('"'))
