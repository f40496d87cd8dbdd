"""HEAD is answered wherever GET is, with the same status and headers, and without a body (RFC 9110, 9.3.2)."""

from __future__ import annotations

import httpx
import pytest

from gateway.http.envelope import Application
from tests.gateway.admin.routes import Route, routes_of
from tests.gateway.conftest import House
from tests.gateway.http.raw import RawReply, Replies, connect

OF_THE_REQUEST = {"x-request-id", "request-id", "openai-processing-ms", "date", "content-length"}
"""Headers that differ from request to request, or with the time that a report is about."""


@pytest.fixture
def routes(house: House) -> list[Route]:
    assert isinstance(house.gateway.app, Application)
    return [route for route in routes_of(house.gateway.app) if route.method == "GET"]


def head_of(house: House, method: str, path: str, key: str) -> tuple[str, dict[str, str]]:
    """Return the status line and the headers of the reply to a request, without those of each request."""
    with connect(house) as sock:
        sock.sendall(f"{method} {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n\r\n".encode())
        received = b""
        while b"\r\n\r\n" not in received:
            received += sock.recv(65536)
        lines = received.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")
        if method == "HEAD":  # the next bytes of the connection are the next reply's
            sock.sendall(b"GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n")
            replies = Replies(sock)
            assert received.endswith(b"\r\n\r\n")
            assert replies.next().status_line == "HTTP/1.1 200 OK"
    headers = dict(line.split(": ", 1) for line in lines[1:])
    headers.pop("transfer-encoding", None)  # a reply without a body has none
    return lines[0], {name: value for name, value in headers.items() if name not in OF_THE_REQUEST}


@pytest.mark.parametrize("caller", ["a tenant", "the operator", "nobody"])
def test_head_is_answered_wherever_get_is(house: House, routes: list[Route], caller: str) -> None:
    key = {"a tenant": house.acme.key, "the operator": house.operator_key, "nobody": "none"}[caller]
    assert len(routes) > 100
    wrong = []
    for route in routes:
        path = route.at(project_id=house.acme.project_id)
        got, head = (head_of(house, method, path, key) for method in ("GET", "HEAD"))
        if got != head:
            wrong.append((path, got, head))
    assert wrong == []


def test_a_reply_to_head_says_how_long_the_reply_to_get_is(house: House) -> None:
    headers = {"authorization": f"Bearer {house.acme.key}"}
    for path in ("/v1/models", "/v1/models/tiny", "/v1/models/none", "/health", "/docs"):
        got, head = (httpx.request(method, house.url + path, headers=headers) for method in ("GET", "HEAD"))
        assert (head.status_code, head.content) == (got.status_code, b"")
        assert head.headers["content-length"] == str(len(got.content))


def test_a_file_is_not_read_for_head(house: House) -> None:
    headers = {"authorization": f"Bearer {house.acme.key}"}
    content = b"x" * (3 << 20)
    with httpx.Client(base_url=house.url, headers=headers) as client:
        made = client.post("/v1/files", files={"file": ("a.txt", content)}, data={"purpose": "user_data"}).json()
        path = f"/v1/files/{made['id']}/content"
        head = client.head(path)
        assert (head.status_code, head.headers["content-length"]) == (200, str(len(content)))
        assert client.get(path).content == content
        assert client.delete(f"/v1/files/{made['id']}").status_code == 200


def test_head_is_refused_where_get_is_and_allow_names_both(house: House) -> None:
    def sent(method: str, path: str) -> RawReply:
        with connect(house) as sock:
            sock.sendall(
                f"{method} {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {house.acme.key}\r\n\r\n".encode()
            )
            return Replies(sock).next()

    assert head_of(house, "HEAD", "/v1/chat/completions/x/y", house.acme.key)[0] == "HTTP/1.1 404 Not Found"
    assert head_of(house, "HEAD", "/v1/embeddings", house.acme.key)[0] == "HTTP/1.1 405 Method Not Allowed"
    refused = sent("DELETE", "/v1/models")
    assert refused.status_line == "HTTP/1.1 405 Method Not Allowed"
    assert set(refused.headers["allow"].split(", ")) == {"GET", "HEAD", "OPTIONS"}
    assert set(sent("POST", "/health").headers["allow"].split(", ")) == {"GET", "HEAD", "OPTIONS"}
