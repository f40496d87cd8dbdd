"""Parts of replies that several endpoints share."""

from __future__ import annotations

import msgspec
from litestar.response.base import ASGIResponse


def reply_id(prefix: str, request_id: str) -> str:
    """Return OpenAI's id of a reply, with the random part of our request id: one leads to the other."""
    return f"{prefix}-{request_id.removeprefix('req_')}"


def json_response(body: msgspec.Struct, *, status: int = 200) -> ASGIResponse:
    """Return a reply whose body is a struct as JSON."""
    return ASGIResponse(body=msgspec.json.encode(body), media_type="application/json", status_code=status)
