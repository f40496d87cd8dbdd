"""A gateway in a process of its own, which can be killed, frozen and started again on the socket that it had.

It starts in a moment, since it is forked from a server that has imported everything.
"""

from __future__ import annotations

import multiprocessing
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import msgspec

from gateway.support.process import last_lines
from tests.installation.databases import of_gateways
from tests.installation.forks import FORKS
from tests.installation.gateway_main import run
from tests.installation.processes import frozen
from tests.installation.waiting import wait_ready
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from gateway.settings import Settings

_SPAWNS = multiprocessing.get_context("spawn")


class GatewayProcess:
    """A gateway on a socket that stays open while the gateway is away, where clients wait for it.

    number: the number of the gateway's log in a folder of several.
    clock_jumps_s: seconds by which the gateway's time of day jumps to and fro every second; such a gateway takes some
    seconds to start.
    network: the name of a network namespace in which the gateway connects to others; its own sockets are where this
    process is.
    """

    def __init__(
        self, settings: Settings, dsn: str, number: int = 0, *, clock_jumps_s: int = 0, network: str = ""
    ) -> None:
        self.log: Path = settings.data_dir / f"gateway{number}.log"
        self._settings = settings
        self._dsn = of_gateways(dsn)
        self._clock_jumps_s = clock_jumps_s
        self._network = network
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port = int(self._socket.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        self._metrics_socket = socket.create_server(("127.0.0.1", 0))
        self.operator_url = f"http://127.0.0.1:{self._metrics_socket.getsockname()[1]}"
        self._process: BaseProcess | None = None

    def start(self) -> None:
        sockets = (self._socket, self._metrics_socket)
        place = (str(self.log), self._clock_jumps_s, self._network)
        values = (msgspec.structs.asdict(self._settings), self._dsn, *sockets, *place)
        context = _SPAWNS if self._clock_jumps_s else FORKS
        self._process = context.Process(target=run, args=values, daemon=True)
        self._process.start()

    def change(self, *, dsn: str | None = None, **fields: object) -> None:
        """Set another connection string, or other settings, for the gateway's next start.

        dsn: None: the connection string stays.
        """
        self._dsn = self._dsn if dsn is None else dsn
        self._settings = msgspec.structs.replace(self._settings, **fields)

    @property
    def pid(self) -> int | None:
        """The pid of the process that runs, or None."""
        return None if self._process is None else self._process.pid

    def kill(self) -> None:
        """Kill the gateway with SIGKILL; do nothing when it does not run."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None

    def begin_to_stop(self) -> None:
        """Send SIGTERM; do nothing when the gateway does not run."""
        if self._process is not None:
            self._process.terminate()

    def ended(self) -> int | None:
        """Return the exit code once the gateway has ended by itself; 0 where it does not run, None where it does not
        end."""
        if self._process is None:
            return 0
        self._process.join(PATIENCE_S)
        code = self._process.exitcode
        self.kill()
        return code

    def terminate(self) -> int | None:
        """Stop the gateway with SIGTERM, and return the exit code as `ended` does."""
        self.begin_to_stop()
        return self.ended()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Freeze the gateway (SIGSTOP) until the context is left."""
        assert self._process is not None and self._process.pid is not None
        with frozen(self._process.pid):
            yield

    def close(self) -> None:
        self.kill()
        self._socket.close()
        self._metrics_socket.close()

    def wait_ready(self) -> None:
        """Wait until the gateway is ready.

        Raises AssertionError: when it never is, with the end of its log.
        """
        wait_ready(self.url, log=lambda: last_lines(self.log, 20))

    def metrics(self) -> str:
        """Return the gateway's metrics as Prometheus reads them."""
        return httpx.get(f"{self.operator_url}/metrics", timeout=PATIENCE_S).text

    def metric(self, name: str) -> float:
        """Return the sum of a metric's samples."""
        lines = [line for line in self.metrics().splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
        return sum(float(line.rpartition(" ")[2]) for line in lines)
