"""Puts the admin API's controllers behind one guard and gives them their services."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from litestar import Router
from litestar.connection import ASGIConnection, Request
from litestar.di import Provide
from litestar.handlers import BaseRouteHandler

from gateway.admin.adapters import AdapterController
from gateway.admin.keys import KeyController, get_key
from gateway.admin.limits import OrganizationLimitController, ProjectLimitController
from gateway.admin.projects import ProjectController
from gateway.admin.rate_limits import RateLimitController
from gateway.admin.services import AdminServices
from gateway.admin.status import status
from gateway.admin.webhooks import WebhookController
from gateway.errors import NotFound, PermissionDenied
from gateway.principal import Principal
from gateway.tenancy.authenticate import Authenticator, require

PATH = "/v1/organization"


def admin_router(services: AdminServices) -> Router:
    """Every route of the admin API, to be registered on the application."""
    return Router(
        PATH,
        route_handlers=[
            ProjectController,
            KeyController,
            AdapterController,
            ProjectLimitController,
            OrganizationLimitController,
            RateLimitController,
            WebhookController,
            get_key,
            status,
        ],
        guards=[operator_guard(services.authenticator)],
        dependencies={
            "services": Provide(lambda: services, sync_to_thread=False),
            "caller": Provide(_caller, sync_to_thread=False),
        },
        request_max_body_size=services.max_body_bytes,
        tags=["admin"],
    )


def operator_guard(
    authenticator: Authenticator,
) -> Callable[[ASGIConnection[Any, Any, Any, Any], BaseRouteHandler], Awaitable[None]]:
    """A guard that lets an operator's key in: to read with `admin_read`, to change anything with `admin_write`.

    It raises InvalidApiKey or PermissionDenied, and leaves the Principal in the request's `auth`.
    """

    async def guard(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
        principal = await authenticator.authenticate(connection.headers.get("authorization"))
        if principal.project_id:
            raise PermissionDenied("This is the key of a project; the admin API needs an operator's key.")
        require(principal, "admin_read" if connection.scope.get("method") in ("GET", "HEAD") else "admin_write")
        if any("\0" in str(value) for value in connection.path_params.values()):
            raise NotFound("The path names nothing that exists.")  # PostgreSQL's text cannot hold a NUL
        connection.scope["auth"] = principal

    return guard


def _caller(request: Request[Any, Any, Any]) -> Principal:
    principal = request.auth
    assert isinstance(principal, Principal), "the guard ran first"
    return principal
