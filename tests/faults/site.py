"""A whole site in processes that can be killed, frozen and started again: PostgreSQL, the fake engine, gateways.

Everything keeps its address: a gateway that starts again serves on the socket that it had, where clients wait for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import asyncpg
import httpx

from gateway.db.embedded import EmbeddedPostgres
from gateway.db.migrate import migrate
from gateway.process import last_lines
from gateway.settings import Settings
from tests.faults.gateway_process import start_gateway
from tests.faults.seen import Seen
from tests.gateway.limits.fleet import Key, make_key, put_limit
from tests.gateway.live import BASE, STARTUP_S, make_operator_key
from tests.gateway.model_folder import make_model_folder

TOKENS_PER_S = 100
STOP_S = 40.0
LIMIT = 10**9


class Postgres:
    """A server of the site's own."""

    def __init__(self, data_dir: Path) -> None:
        self._server = EmbeddedPostgres(data_dir)
        self.dsn = self._server.start()
        self._pid = asyncio.run(_postmaster(self.dsn))

    def stop(self) -> None:
        self._server.stop()

    def kill(self) -> None:
        """As the kernel ends it when memory runs out; then it recovers."""
        os.kill(self._pid, signal.SIGKILL)
        self._server.stop()
        self._start()

    def restart(self) -> None:
        with self.stopped():
            pass

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Nobody can connect."""
        self._server.stop()
        try:
            yield
        finally:
            self._start()

    def _start(self) -> None:
        assert self._server.start() == self.dsn
        self._pid = asyncio.run(_postmaster(self.dsn))

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Connections stay open and nothing answers."""
        self._signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._signal(signal.SIGCONT)

    def _signal(self, signum: signal.Signals) -> None:
        for pid in (self._pid, *_children(self._pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signum)


class Engine:
    """The fake engine, which writes down what it produces."""

    def __init__(self, command: list[str], log: Path) -> None:
        self._command = command
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=subprocess.STDOUT)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class Gateway:
    """A gateway on a socket that stays open while it is away."""

    def __init__(self, settings: Settings, dsn: str, number: int) -> None:
        self.log = settings.data_dir / f"gateway{number}.log"
        self._settings = settings
        self._dsn = dsn
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port = int(self._socket.getsockname()[1])
        self._process: ForkServerProcess | None = None

    def start(self) -> None:
        self._process = start_gateway(self._settings, self._dsn, self._socket, self.log)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None

    def terminate(self) -> int | None:
        """SIGTERM, and the exit code; 0 where it does not run, None where it does not end."""
        if self._process is None:
            return 0
        self._process.terminate()
        self._process.join(STOP_S)
        code = self._process.exitcode
        self.kill()
        return code

    def close(self) -> None:
        self.kill()
        self._socket.close()

    def wait_ready(self) -> None:
        deadline_s = time.monotonic() + STARTUP_S
        while time.monotonic() < deadline_s:
            try:
                if httpx.get(f"http://127.0.0.1:{self.port}/health/ready", timeout=STARTUP_S).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.05)
        raise AssertionError(f"the gateway did not become ready: {last_lines(self.log, 20)}")

    def metric(self, name: str) -> float:
        """The sum of a metric's samples."""
        text = httpx.get(f"http://127.0.0.1:{self.port}/metrics", timeout=5).text
        lines = [line for line in text.splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
        return sum(float(line.rpartition(" ")[2]) for line in lines)


class Site:
    """folder: every user can pass through it. The tenant `key` has limits, none of which is ever reached.

    seen: of all clients. lost: requests that nobody can bill, since a journal was lost.
    """

    def __init__(self, folder: Path, *, num_gateways: int = 1, journal_bytes: int = 64 << 20) -> None:
        model_dir = make_model_folder(folder / "model")
        self.settings = Settings(
            data_dir=folder / "data", model=str(model_dir), model_name=BASE, journal_bytes=journal_bytes
        )
        self.settings.run_dir.mkdir(parents=True)
        self.postgres = Postgres(folder / "postgres")
        asyncio.run(migrate(self.postgres.dsn))
        self.key: Key = asyncio.run(make_key(self.postgres.dsn, "tenant"))
        asyncio.run(put_limit(self.postgres.dsn, self.key.limit("tokens", "month", LIMIT)))
        asyncio.run(put_limit(self.postgres.dsn, self.key.limit("requests", "day", LIMIT)))
        self._operator_key = asyncio.run(make_operator_key(self.postgres.dsn))
        self.seen: list[Seen] = []
        self.lost: set[str] = set()
        self._produced = folder / "produced"
        flags = f"--tokens-per-s {TOKENS_PER_S} --max-num-seqs 256 --endpoint {self.settings.engine_endpoint}".split()
        command = [sys.executable, "-m", "engine.fake", "--model-dir", str(model_dir), *flags]
        self.engine = Engine([*command, "--produced", str(self._produced)], folder / "engine.log")
        self.gateways = [Gateway(self.settings, self.postgres.dsn, number) for number in range(num_gateways)]

    def start(self) -> None:
        self.engine.start()
        for gateway in self.gateways:
            gateway.start()
        for gateway in self.gateways:
            gateway.wait_ready()

    def settle(self) -> None:
        """Stop what runs, in order. What anybody still knows is in the ledger then, and nobody holds a lease."""
        assert [gateway.terminate() for gateway in self.gateways] == [0] * len(self.gateways)
        self.engine.kill()
        asyncio.run(_forget_the_dead(self.postgres.dsn))
        journals = [path for path in self.settings.journal_dir.rglob("*") if path.suffix in (".journal", ".damaged")]
        assert journals == [], "with the database there, a gateway that stops leaves nothing behind"

    def close(self) -> None:
        for gateway in self.gateways:
            gateway.close()
        self.engine.kill()
        self.postgres.stop()

    def produced(self) -> Counter[str]:
        """Tokens that engines made, by request, however these engines ended."""
        return Counter(self._produced.read_text().splitlines())

    def reconciliation(self) -> dict[str, Any]:
        """As the first gateway tells it."""
        url = f"http://127.0.0.1:{self.gateways[0].port}/v1/organization/reconciliation"
        reply = httpx.get(url, headers={"authorization": f"Bearer {self._operator_key}"}, timeout=20)
        assert reply.status_code == 200, reply.text
        found: dict[str, Any] = reply.json()
        return found

    def lose_journals(self) -> None:
        shutil.rmtree(self.settings.journal_dir)


def _parent(pid: int) -> int:
    """proc(5)."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _children(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if _parent(int(entry.name)) == pid:
                found.append(int(entry.name))
    return found


async def _postmaster(dsn: str) -> int:
    conn = await asyncpg.connect(dsn)
    try:
        return _parent(await conn.fetchval("SELECT pg_backend_pid()"))
    finally:
        await conn.close()


async def _forget_the_dead(dsn: str) -> None:
    """What the next beat of any gateway does once those that were killed have been silent for long enough."""
    conn = await asyncpg.connect(dsn)
    try:
        await conn.execute("DELETE FROM limit_gateways")
    finally:
        await conn.close()
