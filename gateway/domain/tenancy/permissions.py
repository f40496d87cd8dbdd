"""Permissions in the admin API: the tables of roles and scopes, and the decision. Pure data, no I/O.

Roles in the organization are for the operator's people, roles in a project for a customer's: these neither lift what
the operator imposes on the project (limits, suspension) nor end it. A key has scopes, and never more than the user who
owns it.
"""

from __future__ import annotations

import typing
from collections.abc import Collection, Iterable

from gateway.domain.errors import NotFound, PermissionDenied
from gateway.domain.tenancy.actor import Actor
from gateway.domain.tenancy.principal import Permission, Role, Scope

ALL: frozenset[Permission] = frozenset(typing.get_args(Permission))
CONTENT: frozenset[Permission] = frozenset({"content.read"})
"""The permissions about the content of requests and replies: for the tenant's own people and the organization's owner,
and for no key."""

READ: frozenset[Permission] = frozenset(name for name in ALL if name.endswith(".read")) - CONTENT

_SECURITY: frozenset[Permission] = frozenset({"audit.read", "admin_keys.read", "admin_keys.write"})

OF_ROLE: dict[Role, frozenset[Permission]] = {
    "owner": ALL,
    "admin": ALL - {"organization.write", "owners.write"} - CONTENT,
    "billing": frozenset(
        {"billing.read", "billing.write", "limits.read", "projects.read", "keys.read", "organization.read"}
    ),
    "viewer": READ - _SECURITY,
}

_IN_PROJECT: frozenset[Permission] = frozenset(
    {
        "adapters.read",
        "adapters.write",
        "billing.read",
        "experiments.read",
        "experiments.write",
        "key_limits.write",
        "keys.read",
        "keys.write",
        "limits.read",
        "members.read",
        "members.write",
        "projects.read",
        "routes.read",
        "routes.write",
    }
)

OF_PROJECT_ROLE: dict[Role, frozenset[Permission]] = {
    "owner": _IN_PROJECT | CONTENT | {"audit.read", "content.write", "owners.write"},
    "admin": _IN_PROJECT | CONTENT | {"audit.read", "content.write"},
    "billing": frozenset({"billing.read", "limits.read", "projects.read", "keys.read"}),
    "viewer": _IN_PROJECT & READ,
}

OF_SCOPE: dict[Scope, frozenset[Permission]] = {
    "inference": frozenset(),
    "feedback": frozenset(),
    "adapters": frozenset({"adapters.read", "adapters.write"}),
    "experiments": frozenset({"experiments.read", "experiments.write", "projects.read"}),
    "usage": frozenset({"billing.read"}),
    "admin_read": READ,
    "admin_write": ALL - READ - CONTENT,
}


def role_permissions(role: Role | None) -> frozenset[Permission]:
    """Return the permissions that a role in the organization gives, in all of it.

    role: None: no role, and no permissions.
    """
    return OF_ROLE[role] if role else frozenset()


def project_role_permissions(role: Role | None) -> frozenset[Permission]:
    """Return the permissions that a role in a project gives there.

    role: None: no role, and no permissions.
    """
    return OF_PROJECT_ROLE[role] if role else frozenset()


def scope_permissions(scopes: Iterable[Scope]) -> frozenset[Permission]:
    """Return the permissions that scopes give together."""
    return frozenset[Permission]().union(*(OF_SCOPE[scope] for scope in scopes))


def has_scope(scopes: Collection[Scope], wanted: Scope) -> bool:
    """Tell whether a key's scopes include the wanted one, or one that implies it: `inference` implies `feedback`."""
    return wanted in scopes or (wanted == "feedback" and "inference" in scopes)


def has_permission(actor: Actor, permission: Permission, project_id: str) -> bool:
    """Tell whether the actor has a permission in the whole organization or in the given project."""
    return permission in actor.permissions or permission in actor.project_permissions.get(project_id, frozenset())


def projects_with(actor: Actor, permission: Permission) -> list[str] | None:
    """Return the ids of the projects in which the actor has the permission, or None for all of the organization."""
    if permission in actor.permissions:
        return None
    return [id for id, permissions in actor.project_permissions.items() if permission in permissions]


def authorize(actor: Actor, permission: Permission, project_id: str | None) -> None:
    """Check that the actor has a permission in the whole organization or, if given, in the project.

    Raises PermissionDenied: when the actor does not have the permission.

    Raises NotFound: when the actor has no part in the project, as if it did not exist.
    """
    if permission in actor.permissions:
        return
    if project_id is not None:
        within = actor.project_permissions.get(project_id)
        if within is not None and permission in within:
            return
        if within is None and not actor.permissions:
            raise no_such_project(project_id)
    raise PermissionDenied(f"You have insufficient permissions for this operation: it needs '{permission}'.")


def check_grant(actor: Actor, granted: Iterable[Permission], project_id: str | None = None) -> None:
    """Check that the actor may give, change or take away these permissions.

    Nobody gives, changes or takes away permissions that they do not have themselves. Permissions to read content are an
    exception: admins and operators' keys may give these permissions without having them.

    project_id: the project in which the permissions would hold; None: the whole organization.

    Raises PermissionDenied: when the permissions go beyond the actor's own.
    """
    has = actor.permissions | CONTENT
    if project_id is not None:
        has = has | actor.project_permissions.get(project_id, frozenset())
    if not has.issuperset(granted):
        raise PermissionDenied("You cannot give, change or take away a role or a scope that goes beyond your own.")


def no_such_project(project_id: str) -> NotFound:
    """Return the error for an unknown project: the same for one that does not exist and for another organization's."""
    return NotFound(f"No project has the id '{project_id}'.", param="project_id")
