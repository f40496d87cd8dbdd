"""Whole gateways on real sockets in threads of this process, over one engine."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import msgspec
import uvicorn
import uvloop
from litestar import Litestar

from gateway.assembly.app import make_server
from gateway.assembly.services import Services, running_services
from gateway.settings import Settings
from tests.installation.databases import of_gateways
from tests.installation.engines import FakeEngine
from tests.installation.passwords import quick_passwords
from tests.installation.waiting import wait_ready
from tests.patience import PATIENCE_S

BASE = "tiny"
"""The public name of the tests' model."""


class LiveGateway:
    """A gateway in threads of this process, which serves from `start` to `stop`.

    url: the root of the gateway's URLs.
    """

    def __init__(self, settings: Settings, model_dir: Path, dsn: str) -> None:
        self._model_dir = model_dir
        self._dsn = of_gateways(dsn)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._settings = msgspec.structs.replace(settings, port=self.port, drain_seconds=5.0)
        self.app: Litestar | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self._server: uvicorn.Server | None = None
        self._services: Services | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.url = f"http://127.0.0.1:{self.port}"

    @property
    def settings(self) -> Settings:
        return self._settings

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    @property
    def num_in_flight(self) -> int:
        """The number of requests that the engine has received from the gateway and not ended."""
        assert self._services is not None
        return sum(backend.num_in_flight for pool in self._services.pools.values() for backend in pool.backends)

    @property
    def is_copying(self) -> bool:
        """True while copies of requests for shadow targets run or wait."""
        assert self._services is not None
        return not self._services.pipeline.shadows.is_idle

    @property
    def num_connections(self) -> int:
        """The number of open connections of clients."""
        assert self._server is not None
        return len(self._server.server_state.connections)

    def metrics(self) -> str:
        """Return the gateway's metrics as Prometheus would read them now."""
        assert self._services is not None
        return self._services.metrics.render().decode()

    def start(self) -> None:
        self._thread.start()
        self.wait_ready()

    def wait_ready(self) -> None:
        """Wait until the gateway is ready.

        Raises the error that ended its thread: when one did.
        """
        wait_ready(self.url, check=self._check)

    def stop(self) -> None:
        if self._server is not None:
            self._server.should_exit = True
        self._thread.join(timeout=PATIENCE_S)
        assert not self._thread.is_alive()
        self._socket.close()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._serve())
        except BaseException as error:
            self._error = error

    async def _serve(self) -> None:
        async with running_services(
            self._settings, model_dir=self._model_dir, dsn=self._dsn, passwords=quick_passwords()
        ) as services:
            self._services = services
            self.loop = asyncio.get_running_loop()
            self._server = make_server(services)
            self.app = self._server.app
            await self._server.serve([self._socket])


class AnyEngine(Protocol):
    """An engine of either kind, a process or threads of this one, that can be ended."""

    def stop(self) -> None: ...


E = TypeVar("E", bound=AnyEngine)


class RunningInstallation(Generic[E]):
    """Running gateways, and the engine behind them."""

    def __init__(self, gateways: Sequence[LiveGateway], engine: E) -> None:
        self.gateways = list(gateways)
        self.engine = engine

    @property
    def gateway(self) -> LiveGateway:
        """The only gateway."""
        (gateway,) = self.gateways
        return gateway


@contextmanager
def gateways_with(
    make_engine: Callable[[str, Path], E], dsn: str, model_dir: Path, *, num_gateways: int = 1, **settings: Any
) -> Iterator[RunningInstallation[E]]:
    """Serve a model over a migrated database until the context is left.

    make_engine: returns a running engine for an endpoint and a model's folder.
    settings: fields of `Settings`, `data_dir` among them.
    """
    made = Settings(model=str(model_dir), model_name=BASE, **settings)
    made.run_dir.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        engine = make_engine(made.engine.endpoint, model_dir)
        stack.callback(engine.stop)
        gateways = [LiveGateway(made, model_dir, dsn) for _ in range(num_gateways)]
        for gateway in gateways:
            stack.callback(gateway.stop)
            gateway.start()
        yield RunningInstallation(gateways, engine)


@contextmanager
def running_gateways(
    dsn: str, model_dir: Path, *, engine_flags: Sequence[str] = (), num_gateways: int = 1, **settings: Any
) -> Iterator[RunningInstallation[FakeEngine]]:
    """Serve a model over a migrated database and a fake engine with these flags until the context is left."""

    def make_engine(endpoint: str, model_dir: Path) -> FakeEngine:
        return FakeEngine(endpoint, model_dir, *engine_flags)

    with gateways_with(make_engine, dsn, model_dir, num_gateways=num_gateways, **settings) as installed:
        yield installed
