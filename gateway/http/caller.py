"""The caller of a request: its key, checked once and handed to its handler."""

from __future__ import annotations

from typing import Any

from litestar import Request
from litestar.di import NamedDependency, Provide
from litestar.params import SkipValidation

from gateway.domain.tenancy.principal import Principal, Scope
from gateway.http.request.call import call_of
from gateway.http.request.credentials import authorization_of
from gateway.tenancy.authenticate import Authenticator, require_scope

Caller = NamedDependency[SkipValidation[Principal]]
"""The type of a handler's parameter `caller`: a principal whose key has the scope that the router requires."""


def provide_caller(authenticator: Authenticator, scope: Scope = "inference") -> Provide:
    """Return a dependency that gives the caller of a request, whose key must have the scope.

    Raises InvalidApiKey: when the key is not good, before the handler runs or the body is read.
    Raises PermissionDenied: when the key does not have the scope.
    """

    async def caller(request: Request[Any, Any, Any]) -> Principal:
        call = call_of(request.scope)
        principal = await authenticator.authenticate(authorization_of(request.scope), call.address)
        call.organization, call.tenant = principal.organization_id, principal.project_id
        call.api_key_id = principal.api_key_id
        require_scope(principal, scope)
        return principal

    return Provide(caller)
