"""The installation on which the overhead is measured.

It has a database, the fake engine, and gateways, each in a process of its own.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import msgspec

from engine.config import model_digest
from gateway.db.limits.limits import set_limit
from gateway.db.migrate import migrate
from gateway.db.organization.keys import create_key
from gateway.db.organization.organizations import ensure_organization
from gateway.db.organization.projects import create_project
from gateway.db.pool import Database
from gateway.db.pools.replicas import add_running_replica
from gateway.db.pools.served import list_served
from gateway.domain.limits.limit import Limit, Unit, Window
from gateway.domain.tenancy.keys import new_key
from gateway.pools.first_pool import make_pool
from gateway.postgres.embedded import EmbeddedPostgres
from gateway.settings import Settings
from gateway.support.host import allow_keys, host_keys, link_folder

MODEL_NAME = "bench"
STARTUP_S = 300.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")

LIMITS: tuple[tuple[Unit, Window, int], ...] = (
    ("requests", "minute", 10**7),
    ("tokens", "minute", 10**9),
    ("tokens", "month", 10**12),
    ("concurrency", "none", 10**5),
)
"""The limits of each tenant, as unit, window and amount: none is reached, all are checked."""


class Installation(msgspec.Struct, frozen=True):
    """A database, an engine and gateways that run."""

    ports: list[int]
    """The ports of the gateways."""
    keys: list[str]
    """The keys, one for each tenant."""
    gateways: list[subprocess.Popen[bytes]]
    engines: list[subprocess.Popen[bytes]]
    engine_endpoint: str
    """The endpoint at which gateways find the engine."""
    dsn: str = ""
    """The connection string of the database."""

    def cpu_s(self) -> float:
        """Return the seconds of processor time that the gateways have used."""
        return sum(cpu_s(gateway.pid) for gateway in self.gateways)


@contextmanager
def running_installation(
    folder: Path,
    model_dir: Path,
    *,
    num_gateways: int,
    num_tenants: int,
    with_limits: bool,
    num_replicas: int = 1,
    over_tcp: bool = False,
    engine_flags: Sequence[str] = (),
    gateway: Sequence[str] = ("gateway.cli", "gateway"),
    settings_of: Mapping[str, str] | None = None,
) -> Iterator[Installation]:
    """Start an installation, yield it, and remove all of it when the context is left.

    folder: an empty folder that every user can pass through. num_replicas: the number of engines of the only pool.
    over_tcp: True: the only engine is reached over TCP with keys, as an engine on another machine. gateway: the module
    that a gateway process runs, with its arguments. settings_of: more variables of gateways.
    num_tenants: the projects that are made. with_limits: True: each project gets limits. engine_flags: further flags of
    the engines.
    """
    settings = Settings(data_dir=folder, model=str(model_dir), model_name=MODEL_NAME)
    settings.run_dir.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        server = EmbeddedPostgres(folder / "postgres")
        dsn = server.start()
        stack.callback(server.stop)
        keys = asyncio.run(_tenants(dsn, num_tenants, with_limits))
        endpoints = [settings.engine.endpoint, *(f"ipc://{settings.run_dir}/r{n}.sock" for n in range(1, num_replicas))]
        public_key, engines = None, list[subprocess.Popen[bytes]]()
        if over_tcp:
            endpoints, public_key = [f"tcp://127.0.0.1:{free_port()}"], host_keys(folder).public
            allow_keys(folder, [public_key])
            engine_flags = (*engine_flags, "--link-dir", str(link_folder(folder)))
        for number, endpoint in enumerate(endpoints):
            engine = ("engine.fake", "--endpoint", endpoint, "--model-dir", str(model_dir))
            command = (sys.executable, "-m", *engine, *engine_flags)
            engines.append(spawn(stack, folder / f"engine{number}.log", command, {}))
        asyncio.run(_pool(dsn, model_dir, endpoints, public_key))
        ports, gateways = [], []
        for number in range(num_gateways):
            port = free_port()
            environ = {
                "LORIKEET_DATA_DIR": str(folder),
                "LORIKEET_MODEL": str(model_dir),
                "LORIKEET_MODEL_NAME": MODEL_NAME,
                "LORIKEET_PORT": str(port),
                "LORIKEET_METRICS_LISTEN": "off",
                "LORIKEET_MAX_CONNECTIONS_PER_ADDRESS": "0",
                "DATABASE_URL": dsn,
                **(settings_of or {}),
            }
            command = (sys.executable, "-m", *gateway)
            gateways.append(spawn(stack, folder / f"gateway{number}.log", command, environ))
            ports.append(port)
        for port, process in zip(ports, gateways, strict=True):
            _wait_ready(port, process)
        yield Installation(ports, keys, gateways, engines, endpoints[0], dsn)


async def _pool(dsn: str, model_dir: Path, endpoints: Sequence[str], public_key: str | None) -> None:
    """Make the pool that gateways serve, with a replica at each endpoint.

    public_key: the key that the engines prove over TCP; None: they are reached by sockets of this machine.
    """
    async with await Database.connect(dsn) as database, database.acquire() as conn:
        digest = model_digest(model_dir)
        async with conn.transaction():
            await make_pool(
                conn,
                MODEL_NAME,
                model="bench",
                folder=model_dir,
                base_digest=digest,
                address=endpoints[0],
                public_key=public_key,
            )
        [pool] = await list_served(conn)
        for endpoint in endpoints[1:]:
            await add_running_replica(conn, pool.row.id, 1, endpoint)


async def _tenants(dsn: str, count: int, with_limits: bool) -> list[str]:
    """Create `count` projects, and return a key of each.

    with_limits: True: each project gets limits.
    """
    await migrate(dsn)
    keys = []
    async with await Database.connect(dsn) as database, database.acquire() as conn:
        organization = await ensure_organization(conn, "default")
        for number in range(count):
            project = await create_project(conn, organization.id, f"bench-{number}-{secrets.token_hex(4)}")
            assert project is not None
            made = new_key()
            await create_key(
                conn,
                organization_id=organization.id,
                project_id=project.id,
                name="bench",
                public=made.public,
                sha256=made.sha256,
                scopes=["inference"],
            )
            for unit, window, most in LIMITS if with_limits else ():
                await set_limit(conn, Limit("", organization.id, project.id, None, None, unit, window, most, True))
            keys.append(made.secret)
    return keys


def spawn(stack: ExitStack, log: Path, command: Sequence[str], environ: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start a process that ends with the stack, without settings of ours that are in the environment."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("LORIKEET_")}
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=inherited | environ, stdout=out, stderr=subprocess.STDOUT)
    stack.callback(_end, process)
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wait_ready(port: int, gateway: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + STARTUP_S
    while time.monotonic() < deadline_s and gateway.poll() is None:
        try:
            if httpx.get(f"http://127.0.0.1:{port}/health/ready", timeout=STARTUP_S).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise RuntimeError("a gateway did not start; its log is in the folder of the benchmark")


def free_port() -> int:
    """Return a port of this machine on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def cpu_s(pid: int) -> float:
    """Return the seconds of user and system time of a process, by proc(5)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S
