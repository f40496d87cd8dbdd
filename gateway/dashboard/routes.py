"""GET /admin/ and all paths below: the dashboard's files, and its one page for every view.

All the files are public: they hold no data, and get it from the admin API.
"""

from __future__ import annotations

from typing import Any

from litestar import Request, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from litestar.response.base import ASGIResponse

from gateway.dashboard.files import File, Files
from gateway.domain.errors import NotFound

ROOT = "/admin/"
API_FOLDER = "v1"
"""A folder below the root in which only the admin API has routes, and no view."""

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "font-src 'self'",
        "manifest-src 'self'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    # Kept, and asked about each time: a new version shows on the next load, an unchanged file costs no transfer.
    "cache-control": "no-cache",
    "vary": "accept-encoding",
}


def dashboard(files: Files | None = None) -> list[HTTPRouteHandler]:
    """Return the routes of the dashboard. files: the files to serve; None: the files that came with this package."""
    served = files or Files()

    @get("/", include_in_schema=False)
    async def get_root() -> ASGIResponse:
        return _redirect()

    @get("/admin", include_in_schema=False)
    async def get_dashboard(request: Request[Any, Any, Any]) -> ASGIResponse:
        if not request.scope["raw_path"].partition(b"?")[0].endswith(b"/"):
            return _redirect()
        return _file_reply(request, served.find(""))

    @get("/admin/{path:path}", include_in_schema=False)
    async def get_dashboard_file(request: Request[Any, Any, Any], path: FromPath[str]) -> ASGIResponse:
        is_of_api = path.strip("/").partition("/")[0] == API_FOLDER
        return _file_reply(request, None if is_of_api else served.find(path))

    return [get_root, get_dashboard, get_dashboard_file]


def _redirect() -> ASGIResponse:
    return ASGIResponse(status_code=302, headers={"location": ROOT, "cache-control": "no-cache"})


def _file_reply(request: Request[Any, Any, Any], file: File | None) -> ASGIResponse:
    if file is None:
        raise NotFound("Nothing exists at this path.")
    is_compressed = "gzip" in request.headers.get("accept-encoding", "")
    etag = f'"{file.etag}-gzip"' if is_compressed else f'"{file.etag}"'
    headers = HEADERS | {"etag": etag}
    if etag in request.headers.get("if-none-match", ""):
        return ASGIResponse(status_code=304, headers=headers)
    if is_compressed:
        headers["content-encoding"] = "gzip"
    return ASGIResponse(
        body=file.compressed if is_compressed else file.body, media_type=file.media_type, headers=headers
    )
