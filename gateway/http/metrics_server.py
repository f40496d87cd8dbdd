"""The listener for metrics, apart from the one for tenants: metrics name every tenant and what it does, second by
second.

The text is made in a thread, and at most once in a while for all who ask. Knows nothing about what is counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable, Generator
from typing import Any

import structlog
import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST

log = structlog.get_logger(__name__)

FRESH_S = 1.0
"""How old a text may be that is sent again."""

BACKLOG = 64


class MetricsText:
    """The exposition of one process. render: makes it, which takes up to 0.1 s."""

    def __init__(self, render: Callable[[], bytes], clock: Callable[[], float] = time.monotonic) -> None:
        self._render = render
        self._clock = clock
        self._lock = asyncio.Lock()
        self._text = b""
        self._made_s = float("-inf")

    async def get(self) -> bytes:
        """Return a text that is at most FRESH_S old."""
        async with self._lock:
            now_s = self._clock()
            if now_s - self._made_s >= FRESH_S:
                self._text = await asyncio.to_thread(self._render)
                self._made_s = now_s
            return self._text


def metrics_app(text: MetricsText) -> Callable[..., Any]:
    """Return an ASGI application that answers GET /metrics, and nothing else."""

    async def app(scope: dict[str, Any], receive: Callable[..., Any], send: Callable[..., Any]) -> None:
        if scope["type"] != "http":
            return
        is_known = scope["path"] == "/metrics" and scope["method"] in ("GET", "HEAD")
        body = await text.get() if is_known else b"Metrics are at GET /metrics.\n"
        headers = [
            (b"content-type", CONTENT_TYPE_LATEST.encode() if is_known else b"text/plain; charset=utf-8"),
            (b"content-length", str(len(body)).encode()),
        ]
        await send({"type": "http.response.start", "status": 200 if is_known else 404, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    return app


def listening_socket(address: tuple[str, int] | None) -> socket.socket | None:
    """Return a socket that listens at an address, or None, with a warning, where that cannot be: metrics are not worth
    a start that fails. address: None for no socket."""
    if address is None:
        return None
    try:
        return socket.create_server(
            address, family=socket.AF_INET6 if ":" in address[0] else socket.AF_INET, backlog=BACKLOG
        )
    except OSError as error:
        log.warning("no_metrics", address=f"{address[0]}:{address[1]}", reason=str(error))
        return None


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave signals to the gateway."""
        yield


@contextlib.asynccontextmanager
async def serving_metrics(config: uvicorn.Config, listener: socket.socket | None) -> AsyncIterator[None]:
    """Serve metrics until the context is left. config: of `metrics_app`. listener: None for not at all."""
    if listener is None:
        yield
        return
    server = _Server(config)
    serving = asyncio.create_task(server.serve([listener]))
    try:
        yield
    finally:
        server.should_exit = server.force_exit = True
        await asyncio.gather(serving, return_exceptions=True)
        listener.close()
