"""Requests that bypass the framework get the framework's bytes. Paths with a slash at the end go through it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gateway.http.envelope import Application
from tests.gateway.conftest import House
from tests.gateway.http.raw import RawReply, Replies, connect, post

MESSAGES = [{"role": "user", "content": "hello there"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "tiny", "messages": MESSAGES, "max_tokens": 3, "stream_options": None},
    "/v1/completions": {"model": "tiny", "prompt": "hello there", "max_tokens": 3},
    "/v1/embeddings": {"model": "tiny", "input": "hello there"},
    "/v1/messages": {"model": "tiny", "messages": MESSAGES, "max_tokens": 3},
    "/v1/responses": {"model": "tiny", "input": "hello there", "max_output_tokens": 3},
}
CHANGES: dict[str, tuple[dict[str, Any], tuple[str, ...], str]] = {
    "usual": ({}, (), "200"),
    "a stream": ({"stream": True}, (), "200"),
    "an unknown model": ({"model": "tiny:nothing"}, (), "404"),
    "a wrong type": ({"model": 1}, (), "400"),
    "an unknown field": ({"nothing": 1}, (), "400"),
    "a body that is too large": ({"model": "x" * (1 << 20)}, (), "413"),
    "no content type": ({}, ("content-type: text/plain",), "200"),
    "a key that is none": ({}, ("x-api-key: x", "idempotency-key: "), "400"),
    "another origin": ({}, ("origin: https://app.example.com",), "200"),
}
CHANGING = re.compile(
    rb'"(?:id|item_id|response_id|message|request_id|created_at|created|completed_at|obfuscation|signature)"'
    rb":\"?[^,\"}]*|(?:req|chatcmpl|cmpl|msg|resp)[_-][0-9A-Za-z_-]{16,}"
)
OF_THE_REQUEST = ("x-request-id", "request-id", "openai-processing-ms", "date", "content-length")


def shown(reply: RawReply) -> tuple[Any, ...]:
    """Return the parts of a reply that are equal for equal requests."""
    headers = {name: value for name, value in reply.headers.items() if name not in OF_THE_REQUEST}
    return reply.status_line, headers, CHANGING.sub(b"", reply.body), OF_THE_REQUEST[0] in reply.headers


def test_these_routes_pass_by_the_framework(house: House) -> None:
    app = house.gateway.app
    assert isinstance(app, Application)
    assert app.direct.keys() >= BODIES.keys()


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("path", BODIES)
def test_both_ways_give_the_same_bytes(house: House, path: str, change: str) -> None:
    fields, headers, status = CHANGES[change]
    body = BODIES[path] | fields
    with connect(house) as sock:
        replies = Replies(sock)
        given = []
        for way in (path, path, f"{path}/"):  # the first fills the cache, which replies tell of
            sock.sendall(post(house, way, body, *headers))
            given.append(replies.next())
    _, direct, framework = given
    assert shown(direct) == shown(framework)
    assert direct.status_line.split()[1] == status or path == "/v1/embeddings", direct.body


@pytest.mark.parametrize("authorization", [None, "Bearer nothing", "Basic x"])
def test_both_ways_refuse_keys_alike(house: House, authorization: str | None) -> None:
    for path, body in BODIES.items():
        with connect(house) as sock:
            replies, given = Replies(sock), []
            for way in (path, f"{path}/"):
                lines = post(house, way, body).split(b"\r\n")
                kept = [line for line in lines if not line.startswith(b"authorization")]
                if authorization is not None:
                    kept.insert(1, f"authorization: {authorization}".encode())
                sock.sendall(b"\r\n".join(kept))
                given.append(replies.next())
        assert shown(given[0]) == shown(given[1])
        assert given[0].status_line.startswith("HTTP/1.1 401")
