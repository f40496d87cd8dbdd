"""Parts of replies that several endpoints share."""

from __future__ import annotations

import hashlib

import msgspec
from litestar.response.base import ASGIResponse
from litestar.types import Receive, Scope, Send

from gateway.db.ids import ID_CHARS

CALL_ID_CHARS = 24


def reply_id(prefix: str, request_id: str) -> str:
    """Return OpenAI's id for a reply, made from the random part of the request's id, so that one leads to the other.

    request_id: the request's id; in an experiment, the id with its MAC, as `vote_ids` makes it.
    """
    return f"{prefix}-{request_id.removeprefix('req_')}"


def request_of(reply: str) -> str:
    """Return the id of the request that a reply's id was made from."""
    return f"req_{reply.partition('-')[2][:ID_CHARS]}"


def call_id(request_id: str, choice: int, index: int) -> str:
    """Return the id of a tool call: the same for the same call of the same request, and for no other."""
    digest = hashlib.sha256(f"{request_id}.{choice}.{index}".encode()).hexdigest()
    return f"call_{digest[:CALL_ID_CHARS]}"


def json_response(body: msgspec.Struct, *, status: int = 200) -> ASGIResponse:
    """Return a reply whose body is a struct as JSON."""
    return _JsonReply(msgspec.json.encode(body), status)


class _JsonReply(ASGIResponse):
    """A reply with a JSON body and its two headers.

    Litestar's own class is made for cookies and media types as well, which costs more than the encoding of a usual
    body.
    """

    def __init__(self, body: bytes, status: int) -> None:  # the base's fields are of no use here
        self.body = body
        self.status_code = status

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(self.body))]
        await send({"type": "http.response.start", "status": self.status_code, "headers": headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": False})
