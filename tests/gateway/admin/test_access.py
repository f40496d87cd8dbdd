"""Every route of the admin API is closed to all but an operator's key with the scope it needs."""

from __future__ import annotations

import httpx

from gateway.tenancy.keys import new_key
from tests.gateway.admin_server import AdminServer

ROUTES = [
    ("GET", "/projects"),
    ("POST", "/projects"),
    ("GET", "/projects/proj_x"),
    ("GET", "/projects/proj_x/api_keys"),
    ("POST", "/projects/proj_x/api_keys"),
    ("DELETE", "/projects/proj_x/api_keys/key_x"),
    ("GET", "/api_keys/key_x"),
    ("GET", "/projects/proj_x/adapters"),
    ("POST", "/projects/proj_x/adapters"),
    ("DELETE", "/projects/proj_x/adapters/pirate"),
    ("GET", "/status"),
]


async def refusal(server: AdminServer, method: str, path: str, key: str | None) -> tuple[int, str | None]:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with httpx.AsyncClient(base_url=f"{server.url}/v1/organization", headers=headers) as client:
        reply = await client.request(method, path)
    return reply.status_code, reply.json().get("error", {}).get("code")


async def test_only_an_operators_key_opens_any_route(
    server: AdminServer, operator: httpx.AsyncClient, acme: str
) -> None:
    project_key = (await operator.post(f"{acme}/api_keys", json={"scopes": ["inference", "adapters"]})).json()["value"]
    reader, writer = await server.admin_key("admin_read"), await server.admin_key("admin_write")
    for method, path in ROUTES:
        assert await refusal(server, method, path, None) == (401, "invalid_api_key")
        assert await refusal(server, method, path, new_key("admin").secret) == (401, "invalid_api_key")
        assert await refusal(server, method, path, project_key) == (403, "insufficient_permissions")
        lacking = writer if method == "GET" else reader
        assert await refusal(server, method, path, lacking) == (403, "insufficient_permissions")
        fitting = reader if method == "GET" else writer
        assert (await refusal(server, method, path, fitting))[0] in (200, 400, 404)


def test_the_table_above_names_every_route() -> None:
    from gateway.admin.adapters import AdapterController
    from gateway.admin.keys import KeyController, get_key
    from gateway.admin.projects import ProjectController
    from gateway.admin.status import status

    handlers = [get_key, status]
    for controller in (AdapterController, KeyController, ProjectController):
        handlers += controller(owner=None).get_route_handlers()  # type: ignore[arg-type]
    assert len(handlers) == len(ROUTES)


async def test_an_operator_sees_nothing_of_another_organization(server: AdminServer, acme: str) -> None:
    stranger = await server.admin_key("admin_read", "admin_write", organization="other")
    for method, path in [
        ("GET", acme),
        ("GET", f"{acme}/api_keys"),
        ("POST", f"{acme}/api_keys"),
        ("GET", f"{acme}/adapters"),
        ("DELETE", f"{acme}/adapters/pirate"),
    ]:
        assert await refusal(server, method, path, stranger) == (404, "not_found")


async def test_odd_ids_are_not_found(operator: httpx.AsyncClient) -> None:
    for path in ("/projects/%00", "/api_keys/%00", "/projects/%27%20OR%201=1--", "/projects/%C3%A9"):
        assert (await operator.get(path)).status_code == 404, path


async def test_the_status_says_what_runs(operator: httpx.AsyncClient) -> None:
    status = (await operator.get("/status")).json()
    assert (status["version"], status["model"]) == ("0.0.0", "tiny")
    assert status["backend"] == {"ready": False, "detail": "no engine", "stats": None, "endpoint": ""}
