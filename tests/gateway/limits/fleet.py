"""Gateways in processes of their own, as many as wanted, over one database and one fake engine."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncpg
import httpx
import msgspec

from gateway.db.billing.prices import add_version
from gateway.db.limits.limits import set_limit
from gateway.db.organization.keys import create_key
from gateway.db.organization.organizations import ensure_organization
from gateway.db.organization.projects import create_project
from gateway.domain.billing.book import Entry
from gateway.domain.limits.limit import Limit, Unit, Window
from gateway.domain.tenancy.keys import new_key
from gateway.settings import Settings
from tests.gateway.live import BASE, FakeEngine
from tests.gateway.model_folder import make_model_folder
from tests.patience import PATIENCE_S

INPUT_NANOS, OUTPUT_NANOS = 3, 7
"""Per token, whether cached or not."""

JUMPS_S = (0, 3600, -3600)

# Every second the process's idea of the time of day jumps to and fro.
PROGRAM = """
import sys, time
data_dir, model_dir, dsn, fd, jump_s = sys.argv[1:]
seconds, nanoseconds = time.time, time.time_ns
jumped_s = lambda: int(jump_s) * (int(time.monotonic()) % 2)
time.time = lambda: seconds() + jumped_s()
time.time_ns = lambda: nanoseconds() + jumped_s() * 10**9
import asyncio, pathlib, socket, uvicorn, uvloop
from gateway.app import build_app
from gateway.services import running_services
from gateway.settings import Settings

async def serve():
    settings = Settings(data_dir=pathlib.Path(data_dir), model=model_dir, model_name="tiny")
    async with running_services(settings, model_dir=pathlib.Path(model_dir), dsn=dsn) as services:
        config = uvicorn.Config(build_app(services), log_config=None, access_log=False, lifespan="off")
        await uvicorn.Server(config).serve([socket.socket(fileno=int(fd))])

with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
    runner.run(serve())
"""


class Key(msgspec.Struct, frozen=True):
    organization_id: str
    project_id: str
    id: str
    secret: str

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.secret}"}

    def limit(self, unit: Unit, window: Window, most: int, *, hard: bool = True, model: str | None = None) -> Limit:
        """One of the key's project."""
        return Limit("", self.organization_id, self.project_id, None, model, unit, window, most, hard, (80, 100))


class Fleet(msgspec.Struct, frozen=True):
    """urls: of the running gateways."""

    dsn: str
    urls: list[str]
    processes: list[subprocess.Popen[bytes]]


@contextmanager
def running_fleet(
    dsn: str, folder: Path, *, num_gateways: int = 3, engine_flags: tuple[str, ...] = ()
) -> Iterator[Fleet]:
    model_dir = make_model_folder(folder / "model")
    settings = Settings(data_dir=folder, model=str(model_dir), model_name=BASE)
    settings.run_dir.mkdir(parents=True)
    asyncio.run(_set_prices(dsn))
    engine = FakeEngine(settings.engine.endpoint, model_dir, *engine_flags)
    urls, processes = [], []
    try:
        for number in range(num_gateways):
            listener = socket.create_server(("127.0.0.1", 0))
            urls.append(f"http://127.0.0.1:{listener.getsockname()[1]}")
            fd = listener.fileno()
            jump_s = JUMPS_S[number % len(JUMPS_S)]
            values = (folder, model_dir, dsn, fd, jump_s)
            command = [sys.executable, "-c", PROGRAM, *map(str, values)]
            with (folder / f"gateway{number}.log").open("wb") as log:
                processes.append(subprocess.Popen(command, pass_fds=[fd], stdout=log, stderr=subprocess.STDOUT))
            listener.close()
        for url in urls:
            _wait_ready(url)
        yield Fleet(dsn, urls, processes)
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(PATIENCE_S)
        engine.kill()


async def make_key(dsn: str, tenant: str) -> Key:
    conn = await asyncpg.connect(dsn)
    try:
        organization = await ensure_organization(conn, "default")
        project = await create_project(conn, organization.id, tenant)
        assert project is not None
        made = new_key()
        row = await create_key(
            conn,
            organization_id=organization.id,
            project_id=project.id,
            name="test",
            public=made.public,
            sha256=made.sha256,
            scopes=["inference"],
        )
        assert row is not None
        return Key(organization.id, project.id, row.id, made.secret)
    finally:
        await conn.close()


async def put_limit(dsn: str, limit: Limit) -> str:
    """Returns its id."""
    conn = await asyncpg.connect(dsn)
    try:
        limit_id, _ = await set_limit(conn, limit)
        return limit_id
    finally:
        await conn.close()


def completion(prompt: list[int], max_tokens: int, **fields: object) -> dict[str, object]:
    return {"model": BASE, "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, **fields}


async def _set_prices(dsn: str) -> None:
    million = 1_000_000
    entry = Entry("*", "*", "*", INPUT_NANOS * million, INPUT_NANOS * million, OUTPUT_NANOS * million)
    conn = await asyncpg.connect(dsn)
    try:
        organization = await ensure_organization(conn, "default")
        async with conn.transaction():
            await add_version(conn, organization.id, currency="usd", entries=[entry], discounts={}, effective_at=None)
    finally:
        await conn.close()


def _wait_ready(url: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            if httpx.get(f"{url}/health/ready", timeout=PATIENCE_S).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    raise AssertionError(f"{url} did not become ready")
