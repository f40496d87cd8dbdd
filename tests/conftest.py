"""Fixtures for every room's tests: a real PostgreSQL, and a fresh migrated database on it for each test."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings

import kernels.cpu.library
from gateway.db.pool import Database
from tests.installation.databases import RUN_VARIABLE, Databases, Keeper, server_dsn
from tests.installation.databases import with_database as with_database
from tests.kernels.count import CaseCount
from tests.workers import WORKER_VARIABLE, Workers

# Read by Triton at its import: where there is no GPU, its kernels are interpreted on the CPU.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Each HTTP client parses all authorities of the machine otherwise, which takes longer than most of what it asks.
os.environ["SSL_CERT_FILE"] = str(Path(__file__).parent / "installation" / "authority.pem")

# Examples have no deadline, and may be slow to make: on a busy machine one of milliseconds may take a second.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

_SIGNS = ("test_experiment_arms.py", "test_signatures.py")
"""End-to-end test files that share an installation of their own, so that they run beside those of the other one."""

_KEEPER = pytest.StashKey[Keeper]()
MAX_WORKERS = 8


def _keeper(config: pytest.Config) -> Keeper:
    """Return the keeper of this run's shared servers, which lives as long as the process that pytest was started in."""
    if _KEEPER not in config.stash:
        config.stash[_KEEPER] = Keeper()
        os.environ[RUN_VARIABLE] = str(config.stash[_KEEPER].folder)
    return config.stash[_KEEPER]


def log_plainly() -> None:
    """Make this process log errors with plain tracebacks.

    By default structlog has rich print every local variable: one error may take ten seconds of processor time.
    """
    structlog.reset_defaults()
    *processors, _ = structlog.get_config()["processors"]
    structlog.configure([*processors, structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)])


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("native_library"):
        kernels.cpu.library.LIBRARY = Path(config.getoption("native_library"))
    log_plainly()
    config.pluginmanager.register(CaseCount(config))
    if num := _num_workers(config.getoption("workers")):
        _keeper(config)  # before there are workers, which share it
        config.pluginmanager.register(Workers(config, num, group_of))


def _num_workers(asked: str) -> int:
    """Return the number of worker processes for an option.

    "auto" is three for each processor and one more, since most tests wait for servers, deadlines and browsers.
    """
    return min(3 * (os.cpu_count() or 1) + 1, MAX_WORKERS) if asked == "auto" else int(asked)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Stop the garbage collector during imports and collection, which make millions of objects that stay to the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_unconfigure(config: pytest.Config) -> None:
    if _KEEPER in config.stash:
        config.stash[_KEEPER].close()


@pytest.fixture(scope="session")
def run_folder(request: pytest.FixtureRequest) -> Path:
    """Return the folder that all processes of a run share, which is removed after the run.

    Every user can pass through the folder, since PostgreSQL runs as another user where pytest runs as root.
    """
    return _keeper(request.config).folder


@pytest.fixture(scope="session")
def worker() -> str:
    """Return the name of this worker process of a run."""
    return os.environ.get(WORKER_VARIABLE, "alone")


@pytest.fixture(scope="session")
def open_folder(run_folder: Path, worker: str) -> Path:
    """Return a folder of this process that every user can pass through, unlike pytest's own folders."""
    folder = run_folder / worker
    folder.mkdir()
    folder.chmod(0o711)
    return folder


@pytest.fixture
def own_open_folder(open_folder: Path) -> Path:
    """Return a new folder of one test that every user can pass through, unlike pytest's own folders."""
    folder = Path(tempfile.mkdtemp(dir=open_folder))
    folder.chmod(0o711)
    return folder


@pytest.fixture(scope="session")
def postgres(run_folder: Path) -> str:
    """Return the DSN of the server that all processes of a run share."""
    return server_dsn(run_folder)


@pytest.fixture(scope="session")
def databases(postgres: str, worker: str) -> Iterator[Databases]:
    """Give a maker of databases that live longer than one test."""
    with Databases(postgres, worker) as databases:
        yield databases


@pytest.fixture
def empty_dsn(databases: Databases) -> Iterator[str]:
    """Give the DSN of a database without any table."""
    with databases.one("empty", empty=True) as dsn:
        yield dsn


@pytest.fixture
def dsn(databases: Databases) -> Iterator[str]:
    """Give the DSN of a migrated database of the test's own."""
    with databases.one() as dsn:
        yield dsn


@pytest.fixture(scope="module")
def module_dsn(databases: Databases) -> Iterator[str]:
    """Give the DSN of a migrated database that the tests of one module share."""
    with databases.one("module") as dsn:
        yield dsn


@pytest.fixture
async def database(dsn: str) -> AsyncIterator[Database]:
    async with await Database.connect(dsn) as database:
        yield database


@pytest.fixture(scope="module")
def log_apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Redirect the log of this process to a file, apart from its prints, before its servers start."""
    with (tmp_path_factory.mktemp("log") / "this-process.log").open("w") as file:
        structlog.configure(logger_factory=structlog.WriteLoggerFactory(file))
        yield
        log_plainly()


LONGEST = (
    "tests/e2e/",
    "tests/browser/",
    "tests/faults/",
    "tests/gateway/agent/",
    "tests/gateway/admin/access/",
    "tests/gateway/test_schemathesis.py",
    "tests/gateway/limits/",
    "tests/engine/test_bench.py",
    "tests/engine/models/test_demo_numerics.py",
    "tests/engine/models/test_demo_speculation.py",
    "tests/engine/cpu/test_quantization.py",
    "tests/engine/cuda/",
    "tests/engine/scheduling/",
    "tests/engine/grammar/",
    "tests/gateway/cli/",
    "tests/kernels/gpu/",
    "tests/gateway/billing/test_query_plans.py",
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run the tests that take longest in one process first, so that no processor waits for them in the end."""

    def place(item: pytest.Item) -> int:
        path = item.path.relative_to(config.rootpath).as_posix()
        return next((place for place, start in enumerate(LONGEST) if path.startswith(start)), len(LONGEST))

    items.sort(key=place)


def group_of(item: pytest.Item) -> str:
    """Return the name of the group of tests that one worker runs.

    The tests of a file are a group, so that their servers start once. The end-to-end tests are one group, those with
    another installation a second one, and the browser tests one, with their house and their browser.
    """
    path = item.path.relative_to(item.config.rootpath)
    if path.name in _SIGNS:
        return "signs"
    shared = {"browser", "e2e"} & set(path.parts)
    return shared.pop() if shared else path.as_posix()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--workers",
        default="0",
        metavar="N",
        help="processes that share the tests; auto is by this machine's processors",
    )
    parser.addoption("--native-library", default="", help="the shared object of the native kernels to test")
    parser.addoption("--full", action="store_true", help="the sizes that are run by hand before a release")


@pytest.fixture(scope="session")
def full(request: pytest.FixtureRequest) -> bool:
    """Return whether tests run at their full size rather than at the size every commit can afford."""
    return bool(request.config.getoption("--full"))
