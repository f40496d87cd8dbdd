"""A project with a pool, an adapter of three versions, and a definition of an experiment over two of them."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from gateway.db.pool import Database
from gateway.pools.first_pool import ensure_first_pool
from tests.gateway.bases import BASE_DIGEST, put_adapter

MODEL = "tiny:support"

DEFINITION: dict[str, Any] = {
    "name": "support-tone",
    "model": "support-bot",
    "unit": {"from": "safety_identifier"},
    "coverage": 2000,
    "arms": [
        {"name": "control", "weight": 5000, "target": {"model": f"{MODEL}@1"}},
        {"name": "warm", "weight": 5000, "target": {"model": f"{MODEL}@2", "defaults": {"temperature": 0.2}}},
    ],
    "metrics": {
        "primary": [{"metric": "cost_nanos", "goal": "decrease"}],
        "guardrails": [{"metric": "error_rate", "action": "pause"}, {"metric": "ttft_ms.p95", "margin": 0.1}],
    },
}


def definition(**changes: Any) -> dict[str, Any]:
    """Return a valid definition of an experiment with some fields changed."""
    return copy.deepcopy(DEFINITION) | changes


class Lab(msgspec.Struct, frozen=True):
    """A project in which experiments can run, with requests about them."""

    client: httpx.AsyncClient
    project: str
    """The path of the project."""
    database: Database

    @property
    def project_id(self) -> str:
        return self.project.removeprefix("/projects/")

    @property
    def path(self) -> str:
        """The path of the project's experiments."""
        return f"{self.project}/experiments"

    async def make(self, **changes: Any) -> dict[str, Any]:
        """Create an experiment."""
        reply = await self.client.post(self.path, json=definition(**changes))
        assert reply.status_code == 200, reply.text
        made: dict[str, Any] = reply.json()
        return made

    async def do(self, made: dict[str, Any], verb: str, **body: Any) -> dict[str, Any]:
        """Execute an action on an experiment, which must succeed, and return its reply."""
        reply = await self.client.post(f"{self.path}/{made['id']}/{verb}".rstrip("/"), json=body)
        assert reply.status_code == 200, reply.text
        after: dict[str, Any] = reply.json()
        return after

    async def refusal(self, path: str, body: Any = None, method: str = "POST") -> tuple[int, str | None]:
        """Send a request that must be refused; return the status and the field that the error names.

        body: the JSON to send; None: none.
        """
        reply = await self.client.request(method, path, json=body)
        assert reply.status_code >= 400, reply.text
        return reply.status_code, reply.json()["error"]["param"]

    async def aliases(self) -> dict[str, dict[str, Any]]:
        """Return the aliases of the project by name."""
        listed = (await self.client.get(f"{self.project}/aliases", params={"limit": 100})).json()["data"]
        return {alias["name"]: alias for alias in listed}

    async def events(self, *prefixes: str) -> list[str]:
        """Return the types of changes of experiments in the audit log, oldest first."""
        logs = (await self.client.get("/audit_logs", params={"limit": 100})).json()["data"]
        return [log["type"] for log in reversed(logs) if log["type"].startswith(prefixes or ("experiment.",))]


@pytest.fixture
async def lab(operator: httpx.AsyncClient, acme: str, database: Database) -> Lab:
    async with database.acquire() as conn:
        await ensure_first_pool(
            conn,
            "tiny",
            model="demo",
            folder=Path("/models/tiny"),
            base_digest=BASE_DIGEST,
            address="ipc:///run/nobody-answers-here.sock",
        )
        for letter in "abc":
            await put_adapter(
                conn, acme.removeprefix("/projects/"), "support", digest=letter * 64, rank=8, size_bytes=1
            )
    return Lab(operator, acme, database)
