"""An operator's key that is bound to networks and an expiry makes nothing that works elsewhere or later."""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.gateway.admin_server import PASSWORD, AdminServer

HERE = ["127.0.0.0/8"]
LATER = int((datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)).timestamp())
BOUNDS: dict[str, Any] = {"expires_at": LATER, "ip_allowlist": HERE}


@pytest.fixture(params=[BOUNDS, {"expires_at": LATER}, {"ip_allowlist": HERE}], ids=["both", "date", "networks"])
async def restricted(
    request: pytest.FixtureRequest, server: AdminServer, operator: httpx.AsyncClient
) -> AsyncIterator[httpx.AsyncClient]:
    """Give a client with an operator's key of all scopes that is bound to networks or an expiry."""
    made = (await operator.post("/admin_api_keys", json={"name": "held"} | request.param)).json()
    async with server.client(made["value"]) as client:
        yield client


def code_of(reply: httpx.Response) -> tuple[int, str | None]:
    return reply.status_code, reply.json().get("error", {}).get("code")


async def test_a_restricted_key_gives_nobody_a_password_or_a_role(
    server: AdminServer, operator: httpx.AsyncClient, restricted: httpx.AsyncClient, acme: str
) -> None:
    user = (await server.user("ann@example.com", "viewer"))["id"]
    refused = [
        ("/users", {"email": "x@example.com", "password": PASSWORD}),
        ("/users", {"email": "x@example.com", "role": "owner"}),
        ("/users", {"email": "x@example.com", "role": "viewer"}),
        (f"/users/{user}", {"role": "admin"}),
        (f"/users/{user}/reset", {"password": PASSWORD}),
        (f"{acme}/users", {"user_id": user, "role": "owner"}),
        (f"{acme}/users", {"user_id": user, "role": "viewer"}),
    ]
    for path, body in refused:
        assert code_of(await restricted.post(path, json=body)) == (403, "held_key"), (path, body)
    listed = (await operator.get("/users")).json()["data"]
    assert [(each["email"], each["role"]) for each in listed] == [("ann@example.com", "viewer")]
    assert (await operator.get(f"{acme}/users")).json()["data"] == []
    assert (await restricted.post("/users", json={"email": "x@example.com"})).status_code == 200, (
        "who cannot log in yet"
    )
    assert (await restricted.post(f"/users/{user}", json={"name": "Ann"})).status_code == 200
    assert (await restricted.post(f"/users/{user}", json={"role": None})).status_code == 200, "taking away is no escape"
    async with server.person("ann@example.com") as ann:
        assert (await ann.get("/projects")).status_code == 403


async def test_a_restricted_key_makes_and_widens_no_key_beyond_itself(
    operator: httpx.AsyncClient, restricted: httpx.AsyncClient, acme: str
) -> None:
    wide = (await operator.post(f"{acme}/api_keys", json={"name": "wide"})).json()
    narrow = (await operator.post(f"{acme}/api_keys", json={"name": "narrow"} | BOUNDS)).json()
    for path, body in (
        (f"{acme}/api_keys", {"name": "new"}),
        ("/admin_api_keys", {"name": "new"}),
        (f"{acme}/api_keys/{wide['id']}/rotate", {}),
        (f"{acme}/api_keys/{narrow['id']}", {"expires_at": None, "ip_allowlist": None}),
    ):
        reply = await restricted.post(path, json=body)
        assert reply.status_code == 400, (path, body, reply.text)
        assert reply.json()["error"]["param"] in ("expires_at", "ip_allowlist")
    for path, body in (
        (f"{acme}/api_keys", {"name": "new"} | BOUNDS),
        ("/admin_api_keys", {"name": "new"} | BOUNDS),
        (f"{acme}/api_keys/{narrow['id']}/rotate", {}),
        (f"{acme}/api_keys/{narrow['id']}", {"name": "narrower"}),
    ):
        assert (await restricted.post(path, json=body)).status_code == 200, (path, body)


async def test_the_first_key_of_a_service_account_is_restricted_as_its_maker_is(
    operator: httpx.AsyncClient, restricted: httpx.AsyncClient, acme: str
) -> None:
    (own,) = [each for each in (await operator.get("/admin_api_keys")).json()["data"] if each["name"] == "held"]
    made = (await restricted.post(f"{acme}/service_accounts", json={"name": "bot"})).json()["api_key"]["id"]
    key = (await operator.get(f"{acme}/api_keys/{made}")).json()
    assert (key["expires_at"], key["ip_allowlist"]) == (own["expires_at"], own["ip_allowlist"])


async def test_a_key_without_restrictions_goes_on_as_before(server: AdminServer, operator: httpx.AsyncClient) -> None:
    assert (await server.user("ann@example.com", "owner"))["role"] == "owner"
