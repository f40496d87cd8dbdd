"""The operator's listener, apart from the one for tenants: metrics, and health for probes.

Metrics name every tenant with its traffic, second by second. Probes may be unable to reach the tenants' port. The
metrics' text is made in a thread, and at most once in a while for all who ask. Knows nothing about the metrics'
meaning.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import msgspec
import structlog
import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST

from gateway.http.uvicorn_server import UvicornServer

log = structlog.get_logger(__name__)

FRESH_S = 1.0
"""Seconds for which the same metrics text is sent again."""

BACKLOG = 64


class MetricsText:
    """The metrics of one process as text, cached. render: makes the text, which takes up to 0.1 s."""

    def __init__(self, render: Callable[[], bytes], clock: Callable[[], float] = time.monotonic) -> None:
        self._render = render
        self._clock = clock
        self._lock = asyncio.Lock()
        self._text = b""
        self._made_s = float("-inf")

    async def get(self) -> bytes:
        """Return a metrics text that is at most FRESH_S old."""
        async with self._lock:
            now_s = self._clock()
            if now_s - self._made_s >= FRESH_S:
                self._text = await asyncio.to_thread(self._render)
                self._made_s = now_s
            return self._text


class Answer(msgspec.Struct, frozen=True):
    """A reply of the operator's listener to a GET."""

    body: bytes
    status: int = 200
    content_type: str = "application/json"


MakeAnswer = Callable[[], Awaitable[Answer]]
"""A function that makes the reply to a GET of one path."""

_UNKNOWN = Answer(b"Metrics are at GET /metrics.\n", 404, "text/plain; charset=utf-8")


def metrics_app(text: MetricsText, answers: Mapping[str, MakeAnswer] | None = None) -> Callable[..., Any]:
    """Return an ASGI application that answers GET /metrics, the paths of `answers`, and nothing else."""

    async def metrics() -> Answer:
        return Answer(await text.get(), content_type=CONTENT_TYPE_LATEST)

    known: dict[str, MakeAnswer] = {"/metrics": metrics, **(answers or {})}

    async def app(scope: dict[str, Any], receive: Callable[..., Any], send: Callable[..., Any]) -> None:
        if scope["type"] != "http":
            return
        make_answer = known.get(scope["path"]) if scope["method"] in ("GET", "HEAD") else None
        answer = _UNKNOWN if make_answer is None else await make_answer()
        headers = [
            (b"content-type", answer.content_type.encode()),
            (b"content-length", str(len(answer.body)).encode()),
        ]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else answer.body})

    return app


def listening_socket(address: tuple[str, int] | None) -> socket.socket | None:
    """Return a socket that listens at an address.

    Return None, and log a warning, where the address cannot be used: a gateway starts even without its metrics.

    address: the host and the port; None: no socket is wanted.
    """
    if address is None:
        return None
    try:
        return socket.create_server(
            address, family=socket.AF_INET6 if ":" in address[0] else socket.AF_INET, backlog=BACKLOG
        )
    except OSError as error:
        log.warning("no_metrics", address=f"{address[0]}:{address[1]}", reason=str(error))
        return None


@contextlib.asynccontextmanager
async def serving_metrics(config: uvicorn.Config, listener: socket.socket | None) -> AsyncIterator[None]:
    """Serve metrics until the context is left.

    config: made with `metrics_app`. listener: None: nothing is served.
    """
    if listener is None:
        yield
        return
    server = UvicornServer(config)
    serving = asyncio.create_task(server.serve([listener]))
    try:
        yield
    finally:
        server.should_exit = server.force_exit = True
        await asyncio.gather(serving, return_exceptions=True)
        listener.close()
