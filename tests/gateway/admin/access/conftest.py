"""All callers of the admin API, and another organization."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import httpx
import pytest

from gateway.domain.tenancy.keys import new_key
from tests.gateway.admin.access.cast import ROLES, Cast
from tests.gateway.admin.access.foreign import ForeignIds, make_foreign
from tests.gateway.admin.routes import routes_of
from tests.gateway.admin_server import AdminServer


@pytest.fixture
async def cast(server: AdminServer, operator: httpx.AsyncClient, acme: str) -> AsyncIterator[Cast]:
    keys = {"anonymous": None, "stranger": "sk-lk-x", "unknown key": new_key("admin").secret}
    keys |= {"admin_read": await server.admin_key("admin_read"), "admin_write": await server.admin_key("admin_write")}
    for scope in ("inference", "adapters", "experiments", "usage"):
        keys[f"key {scope}"] = (await operator.post(f"{acme}/api_keys", json={"scopes": [scope]})).json()["value"]
    globex = f"/projects/{(await operator.post('/projects', json={'name': 'globex'})).json()['id']}"
    routes = [route for route in routes_of(server.app) if route.access is not None]
    async with contextlib.AsyncExitStack() as stack:
        callers = {name: await stack.enter_async_context(server.client(key)) for name, key in keys.items()}
        for where, project in (("organization", None), ("acme", acme), ("globex", globex)):
            for role in ROLES:
                user = await server.user(f"{role}@{where}.example.com", None if project else role)
                if project:
                    await operator.post(f"{project}/users", json={"user_id": user["id"], "role": role})
                callers[f"{role} of {where}"] = await stack.enter_async_context(server.person(user["email"]))
        yield Cast(callers, acme.removeprefix("/projects/"), routes, server.url)


@pytest.fixture
async def foreign(server: AdminServer) -> ForeignIds:
    return await make_foreign(server)
