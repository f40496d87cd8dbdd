"""A proxy that keeps the operator's paths from clients keeps them from paths that mean the same, too."""

from __future__ import annotations

import pytest

from gateway.assembly.app import FENCED
from tests.gateway.conftest import House
from tests.gateway.http.raw import RawReply, Replies, connect

PROJECTS = "/v1/organization/projects"
DISGUISED = (
    f"/{PROJECTS}", "/v1//organization/projects", "/v1/%6frganization/projects", "/v1%2forganization/projects",
    "/v1/organizatio%6E/projects", "/%76%31/organization/projects", "/.//v1/organization/projects",
    "/v1/organization%2Fprojects", "/v1/organization%2F/projects", "/v1/organization%2fprojects?limit=2", "/admin%2F",
    "/admin%2Fv1%2Flogin", "/admin%2Fmain.js", "//admin/", "/%61dmin/", "/%2Fadmin/", "/%61dmin/v1/login",
    "//admin/v1/session",
)  # fmt: skip


def get(house: House, path: str, key: str) -> RawReply:
    with connect(house) as sock:
        sock.sendall(f"GET {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n\r\n".encode())
        return Replies(sock).next()


@pytest.mark.parametrize("path", DISGUISED)
def test_a_path_that_means_one_of_the_operators_is_unknown(house: House, path: str) -> None:
    reply = get(house, path, house.operator_key)
    assert reply.status_line == "HTTP/1.1 404 Not Found"
    assert b'"code":"unknown_url"' in reply.body and f"(GET {path.partition('?')[0]})".encode() in reply.body
    assert "x-request-id" in reply.headers


@pytest.mark.parametrize(
    "path",
    [PROJECTS, f"{PROJECTS}/", "/v1/organization//projects", "/v1/organization/%2Fprojects", f"{PROJECTS}?name=%61"],
)
def test_paths_that_begin_as_they_should_are_answered(house: House, path: str) -> None:
    assert path.startswith(FENCED)
    assert get(house, path, house.operator_key).status_line == "HTTP/1.1 200 OK"


@pytest.mark.parametrize(
    "path", ["/v1//models", "/v1/models/tiny%3Apirate", "/v1/models%2Ftiny%3Apirate", "/%761/models", "//v1/models"]
)
def test_paths_of_tenants_may_be_written_as_clients_do(house: House, path: str) -> None:
    assert get(house, path, house.acme.key).status_line == "HTTP/1.1 200 OK"
