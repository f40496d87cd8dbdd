"""What every room's tests may ask for: a real PostgreSQL, and a fresh migrated database on it per test."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest
import structlog

from gateway.db.migrate import migrate
from gateway.db.pool import Database
from gateway.postgres.embedded import EmbeddedPostgres

TEMPLATE = "lorikeet_template"
MEMORY = Path("/dev/shm")
ROOM_BYTES = 8 << 30

# Read by Triton at its import: where there is no GPU, its kernels are interpreted on the CPU.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")


def with_database(dsn: str, name: str) -> str:
    """The same server, another database."""
    return urlunsplit(urlsplit(dsn)._replace(path=f"/{name}"))


async def _execute(dsn: str, sql: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(sql)
    finally:
        await connection.close()


@pytest.fixture(scope="session")
def open_folder() -> Iterator[Path]:
    """A folder that every user can pass through, as pytest's own cannot: under root PostgreSQL runs as another one.
    In memory where there is plenty: a test's own database is 40 MB of writes, half a second of a slow disk."""
    has_room = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= ROOM_BYTES
    with tempfile.TemporaryDirectory(prefix="lorikeet-tests-", dir=MEMORY if has_room else None) as name:
        Path(name).chmod(0o711)
        yield Path(name)


@pytest.fixture(scope="session")
def postgres(open_folder: Path) -> Iterator[str]:
    """DSN of a server that lives as long as the test run."""
    server = EmbeddedPostgres(open_folder / "shared")
    dsn = server.start()
    try:
        # Tests that crash a server start one of their own; this one need not outlive a power cut.
        asyncio.run(_execute(dsn, "ALTER SYSTEM SET fsync = off"))
        asyncio.run(_execute(dsn, "ALTER SYSTEM SET max_wal_size = '256MB'"))
        asyncio.run(_execute(dsn, "SELECT pg_reload_conf()"))
        yield dsn
    finally:
        server.stop()


@pytest.fixture(scope="session")
def database_template(postgres: str) -> str:
    """Name of a database with the current schema, to copy from."""
    asyncio.run(_execute(postgres, f"CREATE DATABASE {TEMPLATE}"))
    asyncio.run(migrate(with_database(postgres, TEMPLATE)))
    return TEMPLATE


@pytest.fixture(scope="session")
def database_numbers() -> Iterator[int]:
    return itertools.count(1)


@pytest.fixture
def empty_dsn(postgres: str, database_numbers: Iterator[int]) -> Iterator[str]:
    """DSN of a database without any table."""
    name = f"empty_{next(database_numbers)}"
    asyncio.run(_execute(postgres, f"CREATE DATABASE {name}"))
    yield with_database(postgres, name)
    asyncio.run(_execute(postgres, f"DROP DATABASE {name} WITH (FORCE)"))


@pytest.fixture
def dsn(postgres: str, database_template: str, database_numbers: Iterator[int]) -> Iterator[str]:
    """DSN of a migrated database of the test's own."""
    name = f"test_{next(database_numbers)}"
    asyncio.run(_execute(postgres, f"CREATE DATABASE {name} TEMPLATE {database_template} STRATEGY FILE_COPY"))
    yield with_database(postgres, name)
    asyncio.run(_execute(postgres, f"DROP DATABASE {name} WITH (FORCE)"))


@pytest.fixture
async def database(dsn: str) -> AsyncIterator[Database]:
    async with await Database.connect(dsn) as database:
        yield database


@pytest.fixture(scope="module")
def log_apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What this process logs is in a file, apart from what it prints, from before its servers start."""
    with (tmp_path_factory.mktemp("log") / "this-process.log").open("w") as file:
        structlog.configure(logger_factory=structlog.WriteLoggerFactory(file))
        yield
        structlog.reset_defaults()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Two for each processor: most tests wait for servers, deadlines and browsers more than they compute."""
    return 2 * (os.cpu_count() or 1)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Processes that share a run take whole files, so that these start their servers once; the end-to-end tests share
    one, and so do those in a browser. Made here: the marks of `--dist loadgroup` have no effect with pytest 9."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class ByServers(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = str(super()._split_scope(nodeid))
            return next((room for room in ("e2e", "browser") if room in path.split("/")), path)

    return ByServers(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="the sizes that are run by hand before a release")


@pytest.fixture(scope="session")
def full(request: pytest.FixtureRequest) -> bool:
    """Whether to run a test at its full size rather than at the size every commit can afford."""
    return bool(request.config.getoption("--full"))
