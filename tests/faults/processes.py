"""Processes that can be killed, frozen and started again: PostgreSQL, the fake engine, a gateway.

Each keeps its address: a gateway that starts again serves on the socket that it had, where clients wait for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import asyncpg
import httpx

from gateway.postgres.embedded import EmbeddedPostgres
from gateway.settings import Settings
from gateway.support.process import last_lines
from tests.faults.gateway_process import start_gateway
from tests.patience import PATIENCE_S


@contextmanager
def frozen(*pids: int) -> Iterator[None]:
    """Nothing of these runs meanwhile; the kernel keeps what is sent to them."""
    _signal(pids, signal.SIGSTOP)
    try:
        yield
    finally:
        _signal(pids, signal.SIGCONT)


def _signal(pids: tuple[int, ...], signum: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signum)


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
        with frozen(self._pid, *_children(self._pid)):
            yield


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

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """As a machine that swaps; it goes on where it was."""
        assert self._process is not None
        with frozen(self._process.pid):
            yield


class Gateway:
    """A gateway on a socket that stays open while it is away."""

    def __init__(self, settings: Settings, dsn: str, number: int) -> None:
        self.log = settings.data_dir / f"gateway{number}.log"
        self._settings = settings
        self._dsn = dsn
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port = int(self._socket.getsockname()[1])
        self._metrics_socket = socket.create_server(("127.0.0.1", 0))
        self._metrics_port = int(self._metrics_socket.getsockname()[1])
        self._process: ForkServerProcess | None = None

    def start(self) -> None:
        self._process = start_gateway(self._settings, self._dsn, self._socket, self._metrics_socket, self.log)

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
        self._process.join(PATIENCE_S)
        code = self._process.exitcode
        self.kill()
        return code

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """As a machine that swaps; it goes on where it was."""
        assert self._process is not None and self._process.pid is not None
        with frozen(self._process.pid):
            yield

    def close(self) -> None:
        self.kill()
        self._socket.close()
        self._metrics_socket.close()

    def wait_ready(self) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline_s:
            try:
                if httpx.get(f"http://127.0.0.1:{self.port}/health/ready", timeout=PATIENCE_S).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.05)
        raise AssertionError(f"the gateway did not become ready: {last_lines(self.log, 20)}")

    def metric(self, name: str) -> float:
        """The sum of a metric's samples."""
        text = httpx.get(f"http://127.0.0.1:{self._metrics_port}/metrics", timeout=PATIENCE_S).text
        lines = [line for line in text.splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
        return sum(float(line.rpartition(" ")[2]) for line in lines)


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
