"""A body with a content coding is refused for that, whatever reads it, and never taken for something else."""

from __future__ import annotations

import gzip
import json

import httpx
import msgspec
import pytest

from tests.gateway.conftest import House
from tests.gateway.http.raw import Replies, connect

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}
MESSAGE = "The body has the content coding 'gzip': send it as it is, without Content-Encoding."


@pytest.mark.parametrize(
    "path",
    [
        *("/v1/chat/completions", "/v1/chat/completions/", "/v1/responses", "/v1/embeddings", "/tokenize"),
        *("/v1/files", "/v1/organization/projects", "/admin/v1/login"),
    ],
)
def test_a_compressed_body_is_refused_by_its_coding(house: House, path: str) -> None:
    key = house.operator_key if "organization" in path else house.acme.key
    headers = {"authorization": f"Bearer {key}", "content-encoding": "gzip", "content-type": "application/json"}
    if path == "/v1/files":
        headers["content-type"] = "multipart/form-data; boundary=x"
    reply = httpx.post(house.url + path, content=gzip.compress(json.dumps(CHAT).encode()), headers=headers)
    assert (reply.status_code, reply.headers["accept-encoding"]) == (415, "identity"), reply.text
    assert reply.json()["error"] == {
        "message": MESSAGE,
        "type": "invalid_request_error",
        "param": None,
        "code": "unsupported_content_encoding",
    }


def test_the_messages_api_has_its_own_shape(house: House) -> None:
    headers = {"x-api-key": house.acme.key, "content-encoding": "gzip"}
    reply = httpx.post(f"{house.url}/v1/messages", content=gzip.compress(b"{}"), headers=headers)
    assert (reply.status_code, reply.headers["accept-encoding"]) == (415, "identity")
    assert reply.json()["error"] == {"type": "invalid_request_error", "message": MESSAGE}


@pytest.mark.parametrize(
    ("coding", "status"),
    [
        ("identity", 200),
        ("Identity, identity", 200),
        ("", 200),
        ("br", 415),
        ("identity, zstd", 415),
        ("x" * 2000, 415),
    ],
)
def test_a_body_that_is_sent_as_it_is_may_say_so(house: House, coding: str, status: int) -> None:
    headers = {"authorization": f"Bearer {house.acme.key}", "content-encoding": coding}
    reply = httpx.post(f"{house.url}/v1/chat/completions", json=CHAT, headers=headers)
    assert reply.status_code == status
    assert len(reply.content) < 1000, "a client's own text is repeated in part"


def test_a_key_comes_first_and_a_request_without_a_body_has_no_coding(house: House) -> None:
    coded = {"content-encoding": "gzip"}
    assert httpx.post(f"{house.url}/v1/chat/completions", content=b"x", headers=coded).status_code == 401
    coded["authorization"] = f"Bearer {house.acme.key}"
    assert httpx.get(f"{house.url}/v1/models", headers=coded).status_code == 200


def test_the_connection_goes_on_after_the_refusal(house: House) -> None:
    body = gzip.compress(json.dumps(CHAT).encode())
    lines = [
        "POST /v1/chat/completions HTTP/1.1",
        "host: x",
        f"authorization: Bearer {house.acme.key}",
        "content-encoding: gzip",
        f"content-length: {len(body)}",
    ]
    with connect(house) as sock:
        replies = Replies(sock)
        for _ in range(2):
            sock.sendall("".join(f"{line}\r\n" for line in lines).encode() + b"\r\n" + body)
            reply = replies.next()
            assert reply.status_line == "HTTP/1.1 415 Unsupported Media Type"
            assert msgspec.json.decode(reply.body)["error"]["message"] == MESSAGE
