"""GET /openapi.json, and /docs, the page made of the document.

Both are public, and made when they are first asked for.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
from litestar import Litestar, Request, get
from litestar.handlers import HTTPRouteHandler
from litestar.response.base import ASGIResponse

from gateway.http.request.call import call_of
from gateway.http.shape import shape
from gateway.reference.openapi import document
from gateway.reference.page.page import FOLDER, page
from gateway.reference.page.snippets import BASE_URL

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HOST = re.compile(r"(?:[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*|\[[0-9A-Fa-f:]+\])(?::\d{1,5})?")
"""The pattern of a Host header as browsers send it (RFC 9112, section 3.2); any other value is not shown."""


class Rendered(msgspec.Struct, frozen=True):
    """The OpenAPI document and its page, encoded."""

    document: bytes
    page: str


def documentation() -> list[HTTPRouteHandler]:
    """Return the handlers of the document, the page and its style."""
    rendered_of = made_once(_make)

    @get("/openapi.json", opt=shape(reply=dict[str, Any]))
    async def get_openapi(request: Request[Any, Any, Any]) -> ASGIResponse:
        """Return this documentation as an OpenAPI document."""
        return ASGIResponse(body=(await rendered_of(request.app)).document, media_type="application/json")

    @get("/docs", opt=shape(media=("text/html",)))
    async def get_docs(request: Request[Any, Any, Any]) -> ASGIResponse:
        """Show this page."""
        text = (await rendered_of(request.app)).page.replace(BASE_URL, base_url(request))
        headers = {"content-security-policy": CONTENT_SECURITY_POLICY}
        return ASGIResponse(body=text.encode(), media_type="text/html", headers=headers)

    style = (FOLDER / "style.css").read_bytes()

    @get("/docs/style.css", opt=shape(media=("text/css",)))
    async def get_docs_style() -> ASGIResponse:
        """Return the style sheet of this page."""
        return ASGIResponse(body=style, media_type="text/css", headers={"cache-control": "no-cache"})

    return [get_openapi, get_docs, get_docs_style]


def made_once(make: Callable[[Litestar], Rendered]) -> Callable[[Litestar], Coroutine[Any, Any, Rendered]]:
    """Return make as a function that runs in a thread once for all callers; again only if the first run fails."""
    making: asyncio.Task[Rendered] | None = None

    async def rendered_of(app: Litestar) -> Rendered:
        nonlocal making
        if making is None or (making.done() and (making.cancelled() or making.exception() is not None)):
            making = asyncio.create_task(asyncio.to_thread(make, app))
        return await asyncio.shield(making)  # others may wait for it when one leaves

    return rendered_of


def base_url(request: Request[Any, Any, Any]) -> str:
    """Return the URL at which the reader reached the server, for the examples of the page that the reader sees."""
    host = request.headers.get("host", "")
    scheme = "https" if call_of(request.scope).is_https else "http"
    return f"{scheme}://{host}" if HOST.fullmatch(host) else BASE_URL


def _make(app: Litestar) -> Rendered:
    described = document(app)
    return Rendered(msgspec.json.encode(described), page(described))
