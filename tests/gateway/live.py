"""A whole gateway on real sockets: PostgreSQL, a fake engine in a process of its own, HTTP in a thread of this one."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import asyncpg
import httpx
import msgspec
import uvicorn
import uvloop
from litestar import Litestar

from gateway.assembly.app import make_server
from gateway.assembly.pools import ServedModel
from gateway.assembly.services import Services, running_services
from gateway.db.organization.keys import create_key
from gateway.db.organization.organizations import ensure_organization
from gateway.db.organization.projects import create_project
from gateway.domain.tenancy.keys import new_key
from gateway.settings import Settings
from tests.gateway.bases import put_adapter
from tests.patience import PATIENCE_S

BASE = "tiny"


class Tenant(msgspec.Struct, frozen=True):
    project_id: str
    key: str
    adapter: str
    digest: str


class FakeEngine:
    """`engine.fake` as a child process, so that it can be killed."""

    def __init__(self, endpoint: str, model_dir: Path, *flags: str) -> None:
        self._command = [sys.executable, "-m", "engine.fake", "--endpoint", endpoint, "--model-dir", str(model_dir)]
        self._command += flags
        self.process = subprocess.Popen(self._command)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def restart(self) -> None:
        self.kill()
        self.process = subprocess.Popen(self._command)


async def make_tenant(dsn: str, name: str, adapter: str, digest_start: str) -> Tenant:
    """A project with a key and one adapter; the fake engine rotates its answers by the digest's first 32 bits."""
    conn = await asyncpg.connect(dsn)
    try:
        organization = await ensure_organization(conn, "default")
        project = await create_project(conn, organization.id, name)
        assert project is not None
        key = new_key()
        await create_key(
            conn,
            organization_id=organization.id,
            project_id=project.id,
            name="test",
            public=key.public,
            sha256=key.sha256,
            scopes=["inference"],
        )
        digest = digest_start.rjust(8, "0").ljust(64, "a")
        await put_adapter(conn, project.id, adapter, digest=digest, rank=8, size_bytes=1)
        return Tenant(project.id, key.secret, adapter, digest)
    finally:
        await conn.close()


async def make_operator_key(dsn: str) -> str:
    """A key that opens all of the admin API."""
    conn = await asyncpg.connect(dsn)
    try:
        organization = await ensure_organization(conn, "default")
        key = new_key("admin")
        await create_key(
            conn,
            organization_id=organization.id,
            project_id=None,
            name="operator",
            public=key.public,
            sha256=key.sha256,
            scopes=["admin_read", "admin_write"],
        )
        return key.secret
    finally:
        await conn.close()


class LiveGateway:
    """Serves from `start` to `stop`; url is its root."""

    def __init__(self, settings: Settings, model_dir: Path, dsn: str, more: Sequence[ServedModel] = ()) -> None:
        """more: further base models that it serves."""
        self._settings = msgspec.structs.replace(settings, drain_seconds=5.0)
        self._model_dir = model_dir
        self._dsn = dsn
        self._more = more
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.app: Litestar | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self._server: uvicorn.Server | None = None
        self._services: Services | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.url = f"http://127.0.0.1:{self.port}"

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    @property
    def num_in_flight(self) -> int:
        """Requests that its engine was given and has not ended."""
        assert self._services is not None
        return sum(backend.num_in_flight for pool in self._services.pools.values() for backend in pool.backends)

    @property
    def num_connections(self) -> int:
        """Of clients, open ones."""
        assert self._server is not None
        return len(self._server.server_state.connections)

    def metrics(self) -> str:
        """What Prometheus would be told now."""
        assert self._services is not None
        return self._services.metrics.render().decode()

    def start(self) -> None:
        self._thread.start()
        self.wait_ready()

    def wait_ready(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            try:
                if httpx.get(f"{self.url}/health/ready", timeout=PATIENCE_S).status_code == 200:
                    return
            except httpx.TransportError:
                if self._error is not None:
                    raise self._error from None
            time.sleep(0.05)
        raise AssertionError("the gateway did not become ready")

    def stop(self) -> None:
        if self._server is not None:
            self._server.should_exit = True
        self._thread.join(timeout=PATIENCE_S)
        assert not self._thread.is_alive()
        self._socket.close()

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._serve())
        except BaseException as error:
            self._error = error

    async def _serve(self) -> None:
        running = running_services(self._settings, model_dir=self._model_dir, dsn=self._dsn, more=self._more)
        async with running as services:
            self._services = services
            self.loop = asyncio.get_running_loop()
            self._server = make_server(services)
            self.app = self._server.app
            await self._server.serve([self._socket])
