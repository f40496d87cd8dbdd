"""GET /openapi.json, and /docs, the page made of the document.

Both are public, and made when they are first asked for.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from typing import Any

from litestar import Litestar, Request, get
from litestar.handlers import HTTPRouteHandler
from litestar.response.base import ASGIResponse
from litestar.types import Receive, Scope, Send

from gateway.http.request.call import call_of
from gateway.http.shape import shape
from gateway.reference.openapi.operations import operations
from gateway.reference.page.page import FOLDER
from gateway.reference.page.rendering import Rendered, render
from gateway.reference.page.snippets import BASE_URL
from gateway.support.process import call_apart

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
Making = Callable[[Litestar], Coroutine[Any, Any, Rendered]]
"""A function that renders what an application's routes declare."""

HOST = re.compile(r"(?:[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*|\[[0-9A-Fa-f:]+\])(?::\d{1,5})?")
"""The pattern of a Host header as browsers send it (RFC 9112, section 3.2); any other value is not shown."""

MAX_HOST_CHARS = 259
"""The length of the longest host name (RFC 1035, section 2.3.4) with a port.

A longer value is not shown: the page, which has it in hundreds of places, would be tens of megabytes.
"""


def documentation() -> list[HTTPRouteHandler]:
    """Return the handlers of the document, the page and its style."""
    rendered_of = made_once(_render_apart)

    @get("/openapi.json", opt=shape(reply=dict[str, Any]))
    async def get_openapi(request: Request[Any, Any, Any]) -> ASGIResponse:
        """Return this documentation as an OpenAPI document."""
        return ASGIResponse(body=(await rendered_of(request.app)).document, media_type="application/json")

    @get("/docs", opt=shape(media=("text/html",)))
    async def get_docs(request: Request[Any, Any, Any]) -> ASGIResponse:
        """Show this page."""
        return PageReply((await rendered_of(request.app)).page, base_url(request).encode())

    style = (FOLDER / "style.css").read_bytes()

    @get("/docs/style.css", opt=shape(media=("text/css",)))
    async def get_docs_style() -> ASGIResponse:
        """Return the style sheet of this page."""
        return ASGIResponse(body=style, media_type="text/css", headers={"cache-control": "no-cache"})

    return [get_openapi, get_docs, get_docs_style]


class PageReply(ASGIResponse):
    """The page for one reader, a chunk at a time, so that readers who do not read hold no page each."""

    def __init__(self, chunks: list[list[bytes]], url: bytes) -> None:  # the base's fields are of no use
        self._chunks = chunks
        self._url = url

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the page. Each `send` waits until the client has read what came before."""
        num_bytes = sum(sum(map(len, pieces)) + (len(pieces) - 1) * len(self._url) for pieces in self._chunks)
        headers = [
            (b"content-type", b"text/html; charset=utf-8"),
            (b"content-length", b"%d" % num_bytes),
            (b"content-security-policy", CONTENT_SECURITY_POLICY.encode()),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for pieces in self._chunks:
            await send({"type": "http.response.body", "body": self._url.join(pieces), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _render_apart(app: Litestar) -> Rendered:
    return await call_apart(render, operations(app))


def made_once(make: Making) -> Making:
    """Return a function that runs `make` once, and gives all callers its result.

    After a run that failed, the next caller starts another one.
    """
    making: asyncio.Task[Rendered] | None = None

    async def rendered_of(app: Litestar) -> Rendered:
        nonlocal making
        if making is None or (making.done() and (making.cancelled() or making.exception() is not None)):
            making = asyncio.create_task(make(app))
        return await asyncio.shield(making)  # others may wait for it when one leaves

    return rendered_of


def base_url(request: Request[Any, Any, Any]) -> str:
    """Return the URL at which the reader reached the server, for the examples of the page that the reader sees."""
    host = request.headers.get("host", "")
    scheme = "https" if call_of(request.scope).is_https else "http"
    return f"{scheme}://{host}" if len(host) <= MAX_HOST_CHARS and HOST.fullmatch(host) else BASE_URL
