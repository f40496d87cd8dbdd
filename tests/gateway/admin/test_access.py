"""The permission of each route of the admin API, found in the application's own table, and its good body."""

from __future__ import annotations

import typing

import httpx
import pytest
from litestar import Litestar, Router, get

from gateway.admin.access import Nothing, UndeclaredRoute, check_routes, needs
from gateway.domain.tenancy.principal import Permission
from gateway.http.envelope import OwnRouter
from tests.gateway.admin.routes import GOOD_BODIES, routes_of
from tests.gateway.admin_server import AdminServer

MEANT = {
    (): "organization",
    ("status",): "organization",
    ("engines",): "organization",
    ("requests",): "billing",
    ("live",): "projects",
    ("alerts",): "projects",
    ("search",): "projects",
    ("traffic",): "billing",
    ("traffic", "top"): "billing",
    ("projects", "traffic"): "billing",
    ("refusals",): "limits",
    ("projects", "refusals"): "limits",
    ("projects", "requests"): "billing",
    ("projects", "batches"): "billing",
    ("projects", "files"): "content",
    ("projects", "files", "content"): "content",
    ("projects", "requests", "content"): "content",
    ("projects", "requests", "response"): "content",
    ("projects", "stored_conversations"): "content",
    ("projects", "content_logging"): "content",
    ("reconciliation",): "organization",
    ("reconciliation", "lost_journals"): "billing",
    ("projects",): "projects",
    ("projects", "users"): "members",
    ("projects", "service_accounts"): "keys",
    ("projects", "api_keys"): "keys",
    ("projects", "adapters"): "adapters",
    ("projects", "adapters", "versions"): "adapters",
    ("projects", "adapter_imports"): "adapters",
    ("adapters",): "adapters",
    ("projects", "adapters", "shares"): "organization",
    ("projects", "aliases"): "adapters",
    ("projects", "routes"): "routes",
    ("projects", "routes", "versions"): "routes",
    ("projects", "experiments"): "experiments",
    ("projects", "experiments", "results"): "experiments",
    ("projects", "experiments", "timeline"): "experiments",
    ("projects", "experiments", "ages"): "experiments",
    ("projects", "experiments", "exports"): "experiments",
    ("projects", "experiments", "exposures"): "experiments",
    ("projects", "experiments", "health"): "experiments",
    ("projects", "experiment_layers"): "experiments",
    ("projects", "experiment_units"): "experiments",
    ("projects", "feedback_metrics"): "experiments",
    ("projects", "holdouts"): "experiments",
    ("routes",): "routes",
    ("routes", "versions"): "routes",
    ("projects", "shared_routes"): "routes",
    ("projects", "plans"): "routes",
    ("pools",): "pools",
    ("pools", "key"): "pools",
    ("pools", "scalings"): "pools",
    ("pools", "adapters"): "pools",
    ("projects", "provider_keys"): "keys",
    ("replicas",): "pools",
    ("hosts",): "pools",
    ("hosts", "tokens"): "pools",
    ("projects", "models"): "projects",
    ("projects", "limits"): "limits",
    ("projects", "rate_limits"): "limits",
    ("projects", "spend_limit"): "limits",
    ("projects", "spend_alerts"): "limits",
    ("spend_limit",): "limits",
    ("spend_alerts",): "limits",
    ("limits",): "limits",
    ("webhooks",): "limits",
    ("usage", "completions"): "billing",
    ("usage", "embeddings"): "billing",
    ("costs",): "billing",
    ("prices",): "billing",
    ("periods",): "billing",
    ("periods", "invoices"): "billing",
    ("projects", "invoices"): "billing",
    ("projects", "credits"): "billing",
    ("projects", "billing"): "billing",
    ("projects", "adapters", "price_class"): "billing",
    ("projects", "adjustments"): "billing",
    ("exports",): "billing",
    ("projects", "exports"): "billing",
    ("deliveries",): "billing",
    ("projects", "stripe_customer"): "billing",
    ("api_keys",): "keys",
    ("users",): "users",
    ("users", "logins"): "users",
    ("users", "passkeys"): "users",
    ("users", "api_keys"): "users",
    ("admin_api_keys",): "admin_keys",
    ("audit_logs",): "audit",
}
"""The kind of object that a path is about, by the path without its ids and actions."""
MEANT_TO_CHANGE = {
    ("projects", "limits"): "key_limits",
    ("projects", "adapters", "shares"): "projects",
    ("projects", "batches"): "keys",
    ("projects", "files"): "keys",
}
"""The kind of object that changes are about, where it differs; for limits of a project it depends on the body."""
ACTIONS = {"close", "suspend", "resume", "archive", "rotate", "reset", "verify", "write_off"} | {
    "promote",
    "retire",
    "rollback",
    "complete",
    "drain",
    "restart",
    "cancel",
    "start",
    "pause",
    "stop",
    "decide",
    "preview",
    "explain",
    "calibrate",
    "forget",
}

ACTIONS_THAT_READ = {"explain"}
"""Actions that take a body and change nothing."""


def test_each_route_names_the_permission_that_its_path_and_method_call_for(server: AdminServer) -> None:
    for route in routes_of(server.app):
        if route.path.startswith("/v1/organization") and route.access:
            words = route.path.removeprefix("/v1/organization").split("/")
            about = tuple(word for word in words if word and word[0] != "{" and word not in ACTIONS)
            reads, writes = f"{MEANT[about]}.read", f"{MEANT_TO_CHANGE.get(about, MEANT[about])}.write"
            is_read = route.method == "GET" or words[-1] in ACTIONS_THAT_READ
            assert route.access.permission == (reads if is_read else writes), str(route)
        elif route.access:
            assert (route.path[:10], route.access.permission) == ("/admin/v1/", None), str(route)


async def test_a_route_without_a_permission_cannot_be_registered() -> None:
    @get("/open")
    async def undeclared() -> None: ...

    @get("/declared", opt=needs("projects.read"))
    async def declared() -> None: ...

    check_routes(Router("/", route_handlers=[declared]))
    with pytest.raises(UndeclaredRoute, match="GET /open names no permission"):
        check_routes(Router("/", route_handlers=[declared, undeclared]))


async def test_a_router_is_registered_without_a_copy() -> None:
    @get("/")
    async def handler() -> None: ...

    router = OwnRouter("/", route_handlers=[handler])
    app = Litestar([router])
    assert router.owner is app


def test_every_permission_is_some_routes(server: AdminServer) -> None:
    named = {route.access.permission for route in routes_of(server.app) if route.access}
    about_fields = {"owners.write"}
    assert named - {None} == set(typing.get_args(Permission)) - about_fields


async def test_odd_ids_are_not_found(operator: httpx.AsyncClient) -> None:
    for path in ("/projects/%00", "/api_keys/%00", "/projects/%27%20OR%201=1--", "/projects/%C3%A9"):
        assert (await operator.get(path)).status_code == 404, path


async def test_the_status_says_what_runs(operator: httpx.AsyncClient) -> None:
    status = (await operator.get("/status")).json()
    assert (status["version"], status["model"]) == ("0.0.0", "tiny")
    assert status["backend"] == {
        "ready": False,
        "detail": "no engine",
        "stats": None,
        "endpoint": "",
        "engine_id": "",
        "reason": "",
        "server": None,
    }


def test_a_good_body_is_known_for_every_route(server: AdminServer) -> None:
    bodies = {route.access.body for route in routes_of(server.app) if route.access and route.access.body}
    assert bodies - {Nothing} == set(GOOD_BODIES)
