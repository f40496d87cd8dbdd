"""The declarations of the admin API's routes about themselves, and the guard that holds callers to them.

A route declares its permission, its query parameters and its body; one without a declaration cannot be registered.
Knows nothing about the routes' work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

import msgspec
from litestar import Request, Router
from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler, HTTPRouteHandler
from litestar.types import HTTPScope

from gateway.admin.services import AdminServices
from gateway.domain.errors import InvalidRequest, NotFound, PermissionDenied
from gateway.domain.tenancy.actor import Actor
from gateway.domain.tenancy.permissions import authorize, project_role_permissions, role_permissions
from gateway.domain.tenancy.principal import Permission
from gateway.http.bodies import announced_bytes, count_body_bytes
from gateway.http.fields import decode
from gateway.http.request.call import Call, call_of
from gateway.http.shape import Form
from gateway.tenancy.authenticate import Authenticator
from gateway.tenancy.logins import Logins, csrf_matches

T = TypeVar("T")
Guard = Callable[[ASGIConnection[Any, Any, Any, Any], BaseRouteHandler], Awaitable[None]]

BYTES_PER_REQUEST = 16 << 10
"""The bytes of a JSON body that count as one more request against the caller's pace."""

COOKIE = "lorikeet_login"
SECURE_COOKIE = f"__Host-{COOKIE}"
"""The cookie's name over HTTPS: browsers take the prefix from this very host alone, over HTTPS alone, so that no other
name of the domain can plant a login (RFC 6265bis, section 4.1.3.2)."""

DEVICE_COOKIE = "lorikeet_device"
SECURE_DEVICE_COOKIE = f"__Host-{DEVICE_COOKIE}"

CHALLENGE_COOKIE = "lorikeet_passkey"
SECURE_CHALLENGE_COOKIE = f"__Host-{CHALLENGE_COOKIE}"

CSRF_HEADER = "x-csrf-token"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})

LIST_QUERY = ("after", "limit")


class Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a request without fields."""


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """The declaration of one route."""

    permission: Permission | None
    """The permission that a caller needs; None: everybody who is logged in may call the route, about themselves."""
    query: tuple[str, ...] = ()
    """The query parameters that the route knows; any other one is refused."""
    headers: tuple[str, ...] = ()
    """The headers that the route reads, all of them needed."""
    body: type[msgspec.Struct] | None = None
    """The struct of a JSON body."""
    form: Form | None = None
    """The parts of a multipart body, instead of JSON where a route takes both."""
    raw: bool = False
    """True: the body is taken as bytes, without decoding."""
    in_any_project: bool = False
    """True: the permission in some project is enough; the route shows those projects only."""


class UndeclaredRoute(TypeError):
    """The error for a route of the admin API without a declaration."""


def needs(
    permission: Permission | None,
    *,
    query: tuple[str, ...] = (),
    headers: tuple[str, ...] = (),
    body: type[msgspec.Struct] | None = None,
    form: Form | None = None,
    raw: bool = False,
    in_any_project: bool = False,
) -> dict[str, Access]:
    """Return the `opt` of a route handler that declares its access. For the arguments see `Access`."""
    access = Access(
        permission=permission,
        query=query,
        headers=headers,
        body=body,
        form=form,
        raw=raw,
        in_any_project=in_any_project,
    )
    return {"access": access}


def check_routes(router: Router) -> Router:
    """Return the router after checking that each of its routes declares its access.

    Raises UndeclaredRoute: when a route declares none or is no route of HTTP.
    """
    for route in router.routes:
        for handler in getattr(route, "route_handlers", [None]):
            if not isinstance(handler, HTTPRouteHandler):
                raise UndeclaredRoute(f"{route.path} is not a route of HTTP")
            if handler.http_methods != {"OPTIONS"} and not isinstance(handler.opt.get("access"), Access):
                raise UndeclaredRoute(f"{'/'.join(handler.http_methods)} {route.path} names no permission")
    return router


async def read_body(request: Request[Any, Any, Any], kind: type[T]) -> T:
    """Decode the request's body; an unknown field is an error.

    Raises InvalidRequest: when the body is not JSON of this kind; the error names the wrong field.
    """
    assert request.route_handler.opt["access"].body is kind
    return decode(msgspec.json.Decoder(kind), await request.body() or b"{}")


def cookie_name(call: Call) -> str:
    """Return the name of the login's cookie on the connection of a request."""
    return SECURE_COOKIE if call.is_https else COOKIE


def device_cookie_name(call: Call) -> str:
    """Return the name of the cookie by which a device is known at the next login."""
    return SECURE_DEVICE_COOKIE if call.is_https else DEVICE_COOKIE


def challenge_cookie_name(call: Call) -> str:
    """Return the name of the cookie that binds a challenge for a passkey to a browser."""
    return SECURE_CHALLENGE_COOKIE if call.is_https else CHALLENGE_COOKIE


def login_token(connection: ASGIConnection[Any, Any, Any, Any]) -> str | None:
    """Return the token of the login that a request brings in a cookie; None without a cookie."""
    return connection.cookies.get(cookie_name(call_of(connection.scope)))


def admin_guard(services: AdminServices) -> Guard:
    """Return a guard that leaves the Actor in the request's `auth`.

    The guard raises InvalidApiKey, InvalidCredentials, PermissionDenied, NotFound for a project in which the caller has
    no part, or LimitReached for a caller that sends too many requests.
    """

    async def guard(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
        call = call_of(connection.scope)
        header, cookie = connection.headers.get("authorization"), login_token(connection)
        access = handler.opt.get("access")
        if header is None and cookie is not None:
            actor = await _person_of_login(connection, cookie, services.logins, call, access)
        else:
            actor = await _key(header, services.authenticator, call)
        if access is None:
            assert connection.scope.get("method") == "OPTIONS", "check_routes saw every other route"
            return
        most = handler.resolve_request_max_body_size() if isinstance(handler, HTTPRouteHandler) else None
        announced = _body_bytes(connection, most)
        count = services.pace.in_parts(actor.id, 1 + (most or 0) / BYTES_PER_REQUEST)
        count(1 + (announced or 0) / BYTES_PER_REQUEST)
        if announced is None and isinstance(connection, Request):
            count_body_bytes(connection, lambda num_bytes: count(num_bytes / BYTES_PER_REQUEST))
        _check_text(connection, access)
        _check_permission(actor, access, connection.path_params.get("project_id"))
        connection.scope["auth"] = actor

    return guard


def _body_bytes(connection: ASGIConnection[Any, Any, Any, Any], most: int | None) -> int | None:
    """Return the announced bytes of a JSON body; None for a body in chunks, which announces none.

    most: the bound on a body; None: the route reads files piece by piece, for which 0 is returned.
    """
    return 0 if most is None else announced_bytes(cast("HTTPScope", connection.scope), most)


async def _key(header: str | None, authenticator: Authenticator, call: Call) -> Actor:
    principal = await authenticator.authenticate(header, call.address)
    call.tenant = principal.project_id
    of_project = {principal.project_id: principal.permissions} if principal.project_id else {}
    return Actor(
        kind="api_key",
        id=principal.api_key_id,
        organization_id=principal.organization_id,
        permissions=frozenset() if of_project else principal.permissions,
        project_permissions=of_project,
        address=call.address,
        request_id=call.request_id,
    )


async def _person_of_login(
    connection: ASGIConnection[Any, Any, Any, Any], token: str, logins: Logins, call: Call, access: Access | None
) -> Actor:
    found = await logins.find(token, call.address, asyncio.get_running_loop().time())
    method = connection.scope.get("method")
    if method not in SAFE_METHODS and not csrf_matches(token, connection.headers.get(CSRF_HEADER, "")):
        raise PermissionDenied(
            f"A request with a login cookie needs the header {CSRF_HEADER}; its value is in the reply to the login.",
            code="csrf",
        )
    is_held_back = logins.must_set_up_totp(found)
    if is_held_back and access is not None and access.permission is not None:
        raise PermissionDenied(
            "People with your role need a second factor here. Log in with a passkey, or set up an authenticator under "
            "'Account' in the dashboard.",
            code="totp_setup_required",
        )
    roles = {} if is_held_back else found.memberships
    return Actor(
        kind="user",
        id=found.user_id,
        organization_id=found.organization_id,
        permissions=frozenset() if is_held_back else role_permissions(found.role),
        project_permissions={project_id: project_role_permissions(role) for project_id, role in roles.items()},
        address=call.address,
        request_id=call.request_id,
        email=found.email,
        login_id=found.login_id,
    )


def _check_permission(actor: Actor, access: Access, project_id: str | None) -> None:
    if access.permission is None:
        if actor.kind != "user":
            raise PermissionDenied("This operation is for people who are logged in. An API key has no login.")
    elif not (access.in_any_project and _has_in_some_project(actor, access.permission)):
        authorize(actor, access.permission, project_id)


def _has_in_some_project(actor: Actor, permission: Permission) -> bool:
    return any(permission in permissions for permissions in actor.project_permissions.values())


def _check_text(connection: ASGIConnection[Any, Any, Any, Any], access: Access) -> None:
    """Check that no text holds a NUL, which PostgreSQL cannot store, and no parameter is given twice or unknown."""
    if any("\0" in str(value) for value in connection.path_params.values()):
        raise NotFound("Nothing exists at this path.")
    seen = set()
    for param, value in connection.query_params.multi_items():
        if param in seen and f"{param.removesuffix('[]')}[]" not in access.query:
            raise InvalidRequest(f"The parameter '{param}' is given twice.", param=param, code="invalid_value")
        seen.add(param)
        if param not in access.query:
            raise InvalidRequest(f"Unrecognized query parameter: {param}", param=param, code="unknown_parameter")
        if "\0" in value:
            raise InvalidRequest(f"Invalid value for '{param}'.", param=param, code="invalid_value")
