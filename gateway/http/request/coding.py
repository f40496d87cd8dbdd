"""The content codings of a request's body, such as gzip: none is decoded (RFC 9110, 15.5.16)."""

from __future__ import annotations

from litestar.types import HTTPScope, Receive, ReceiveMessage

from gateway.domain.errors import UnsupportedCoding, shortened

IDENTITY = "identity"


def coding_of(scope: HTTPScope) -> str | None:
    """Return the first content coding of a request's body; None for a body that is sent as it is."""
    for name, value in scope["headers"]:
        if name == b"content-encoding":
            for coding in value.decode("latin-1").split(","):
                if coding.strip().lower() not in ("", IDENTITY):
                    return coding.strip()
    return None


def refuse_coded_body(receive: Receive, coding: str) -> Receive:
    """Return a `receive` that refuses the first bytes of a body with a content coding, once a handler reads them."""

    async def refuse() -> ReceiveMessage:
        message = await receive()
        if message["type"] == "http.request" and message["body"]:
            raise UnsupportedCoding(shortened(coding))
        return message

    return refuse
