"""The bytes of streams: HTTP's framing, events' framing, and nothing else between them."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator

import pytest

from tests.gateway.conftest import House
from tests.gateway.http.raw import RawReply, Replies, connect, post

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "a\nb\r\n\r\ndata: [DONE]\n\n\u2028"}]}
STREAM = {"stream": True, "max_tokens": 40}
BODIES: dict[str, dict[str, object]] = {
    "/v1/chat/completions": CHAT | STREAM,
    "/v1/completions": {"model": "tiny", "prompt": "x\ndata: [DONE]\n\ny\r\u2029"} | STREAM,
}
HEADERS = {
    "content-type",
    "cache-control",
    "content-security-policy",
    "referrer-policy",
    "x-content-type-options",
    "x-accel-buffering",
    "x-request-id",
    "openai-processing-ms",
    "openai-version",
    "openai-organization",
    "date",
    "transfer-encoding",
}


@pytest.fixture
def sock(house: House) -> Iterator[socket.socket]:
    with connect(house) as sock:
        yield sock


def assert_is_a_stream(reply: RawReply) -> list[dict[str, object]]:
    """Check that a reply is a stream, to the byte; return the objects of its events."""
    assert reply.status_line == "HTTP/1.1 200 OK"
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert (reply.headers["cache-control"], reply.headers["x-accel-buffering"]) == ("no-store", "no")
    assert reply.chunks is not None
    assert all(re.fullmatch(rb"(data: [^\r\n]+\n\n)+", chunk) for chunk in reply.chunks), "whole events in each chunk"
    *events, done = reply.events
    assert done == "data: [DONE]"
    assert all(event.startswith("data: {") and event.endswith("}") for event in events)
    return [json.loads(event.removeprefix("data: ")) for event in events]


@pytest.mark.parametrize("path", BODIES)
def test_a_stream_is_these_bytes_and_the_connection_goes_on(house: House, sock: socket.socket, path: str) -> None:
    replies = Replies(sock)
    for _ in range(2):
        sock.sendall(post(house, path, BODIES[path]))
        reply = replies.next()
        assert reply.headers.keys() == HEADERS
        chunks = assert_is_a_stream(reply)
        assert {chunk["id"] for chunk in chunks} == {chunks[0]["id"]}
        assert "usage" not in chunks[0]
    sock.sendall(post(house, path, BODIES[path] | {"stream": False}, "connection: close"))
    assert replies.next().headers["connection"] == "close"
    assert replies.is_over()


@pytest.mark.parametrize("path", BODIES)
def test_requests_that_come_together_are_answered_one_after_the_other(
    house: House, sock: socket.socket, path: str
) -> None:
    lengths = (40, 3, 17)
    sock.sendall(b"".join(post(house, path, BODIES[path] | {"max_tokens": length}) for length in lengths))
    replies = Replies(sock)
    texts = []
    for _ in lengths:
        chunks = assert_is_a_stream(replies.next())
        texts.append("".join(_text(chunk) for chunk in chunks))
    assert texts[0].startswith(texts[2]) and texts[2].startswith(texts[1])
    assert len(texts[0]) > len(texts[2]) > len(texts[1])


@pytest.mark.parametrize("path", BODIES)
def test_a_client_that_asks_for_a_close_gets_one(house: House, sock: socket.socket, path: str) -> None:
    sock.sendall(post(house, path, BODIES[path], "connection: close"))
    replies = Replies(sock)
    reply = replies.next()
    assert reply.headers["connection"] == "close"
    assert_is_a_stream(reply)
    assert replies.is_over()


@pytest.mark.parametrize("path", BODIES)
def test_usage_is_the_last_object_where_it_is_asked_for_and_null_before(
    house: House, sock: socket.socket, path: str
) -> None:
    sock.sendall(post(house, path, BODIES[path] | {"stream_options": {"include_usage": True}}))
    *chunks, last = assert_is_a_stream(Replies(sock).next())
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in chunks)
    assert last["choices"] == []
    assert isinstance(last["usage"], dict) and last["usage"]["completion_tokens"] == 40
    assert {key: last[key] for key in ("id", "object", "created", "model")} == {
        key: chunks[0][key] for key in ("id", "object", "created", "model")
    }


@pytest.mark.parametrize("path", BODIES)
def test_a_refusal_is_sent_whole_and_not_as_a_stream(house: House, sock: socket.socket, path: str) -> None:
    sock.sendall(post(house, path, BODIES[path] | {"max_tokens": -1}))
    replies = Replies(sock)
    reply = replies.next()
    assert reply.status_line.startswith("HTTP/1.1 400 ")
    assert reply.headers["content-type"].startswith("application/json")
    assert json.loads(reply.body)["error"]["param"] == "max_tokens"
    sock.sendall(post(house, path, BODIES[path]))
    assert_is_a_stream(replies.next())


def _text(chunk: dict[str, object]) -> str:
    choices = chunk["choices"]
    assert isinstance(choices, list)
    return "".join(choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in choices)
