"""A server with the admin API per test, and a client that has the operator's key."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from gateway.db.pool import Database
from tests.gateway.admin_server import AdminServer, serve_admin


@pytest.fixture
async def server(database: Database, tmp_path: Path) -> AsyncIterator[AdminServer]:
    async with serve_admin(database, tmp_path / "server") as server:
        yield server


@pytest.fixture
async def operator(server: AdminServer) -> AsyncIterator[httpx.AsyncClient]:
    async with server.client(server.operator_key) as client:
        yield client


@pytest.fixture
async def acme(operator: httpx.AsyncClient) -> str:
    """Return the path of a project."""
    reply = await operator.post("/projects", json={"name": "acme"})
    return f"/projects/{reply.json()['id']}"
