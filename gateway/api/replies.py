"""What the replies of chat and text completions have in common."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from litestar.response.base import ASGIResponse

from gateway.pipeline import Completion


def reply_id(prefix: str, request_id: str) -> str:
    """OpenAI's id of a reply, with the random part of our request id: one leads to the other."""
    return f"{prefix}-{request_id.removeprefix('req_')}"


def json_response(body: msgspec.Struct, *, status: int = 200) -> ASGIResponse:
    return ASGIResponse(body=msgspec.json.encode(body), media_type="application/json", status_code=status)


async def collect(pieces: AsyncGenerator[str | Completion]) -> tuple[str, Completion]:
    """The whole text of one completion, and its end."""
    texts: list[str] = []
    async with aclosing(pieces):
        async for piece in pieces:
            if not isinstance(piece, str):
                return "".join(texts), piece
            texts.append(piece)
    raise AssertionError("the pipeline ended without a completion")
