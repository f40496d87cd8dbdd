"""A request has one header with its key: of two, a proxy may have checked the one that this server does not read."""

from __future__ import annotations

import msgspec
import pytest

from tests.gateway.conftest import House
from tests.gateway.http.raw import RawReply, Replies, connect

PATHS = ("/v1/models", "/v1/messages", "/v1/organization/projects", "/tokenize", "/health")


def send_raw(house: House, path: str, *headers: str, method: str = "GET") -> RawReply:
    lines = [f"{method} {path} HTTP/1.1", "host: x", "content-length: 0", *headers]
    with connect(house) as sock:
        sock.sendall("".join(f"{line}\r\n" for line in lines).encode() + b"\r\n")
        return Replies(sock).next()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", ["Authorization", "X-Api-Key"])
def test_two_keys_in_headers_of_one_name_are_refused_by_the_name(house: House, path: str, name: str) -> None:
    good = house.operator_key if "organization" in path else house.acme.key
    scheme = "Bearer " if name == "Authorization" else ""
    for second in (good, house.globex.key, "none"):
        reply = send_raw(house, path, f"{name}: {scheme}{good}", f"{name.lower()}: {scheme}{second}")
        error = msgspec.json.decode(reply.body)["error"]
        assert reply.status_line == "HTTP/1.1 400 Bad Request"
        assert error["message"] == f"The header '{name.lower()}' came more than once: send one key."
        assert error["type"] == "invalid_request_error" and "x-request-id" in reply.headers


def test_posts_that_bypass_the_framework_are_refused_as_well(house: House) -> None:
    keys = [f"authorization: Bearer {key}" for key in (house.acme.key, house.globex.key)]
    for path in ("/v1/chat/completions", "/v1/chat/completions/"):
        reply = send_raw(house, path, *keys, method="POST")
        assert (reply.status_line, b'"code":"repeated_header"' in reply.body) == ("HTTP/1.1 400 Bad Request", True)


def test_one_header_of_each_name_is_fine(house: House) -> None:
    good = f"authorization: Bearer {house.acme.key}"
    assert send_raw(house, "/v1/models", good, f"x-api-key: {house.acme.key}").status_line == "HTTP/1.1 200 OK"
    assert send_raw(house, "/v1/models", good, "accept: a", "accept: b").status_line == "HTTP/1.1 200 OK"
