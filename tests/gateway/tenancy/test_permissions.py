"""The table of roles grants what was meant, and nobody reaches or gives more than their own permissions."""

from __future__ import annotations

import pytest

from gateway.domain.errors import NotFound, PermissionDenied
from gateway.domain.tenancy.actor import Actor
from gateway.domain.tenancy.permissions import (
    ALL,
    OF_PROJECT_ROLE,
    OF_ROLE,
    READ,
    authorize,
    check_grant,
    project_role_permissions,
    role_permissions,
    scope_permissions,
)
from gateway.domain.tenancy.principal import Permission


def actor(everywhere: frozenset[Permission], **in_projects: frozenset[Permission]) -> Actor:
    return Actor(
        kind="user",
        id="user_x",
        organization_id="org_x",
        permissions=everywhere,
        project_permissions=in_projects,
        address="",
        request_id="",
    )


def test_roles_differ_as_they_should() -> None:
    assert OF_ROLE["owner"] == ALL
    assert OF_ROLE["owner"] - OF_ROLE["admin"] == {"organization.write", "owners.write", "content.read"}
    assert OF_ROLE["viewer"] < READ
    assert READ - OF_ROLE["viewer"] == {"audit.read", "admin_keys.read"}
    assert {name for name in OF_ROLE["billing"] if name.endswith(".write")} == {"billing.write"}


def test_a_role_in_a_project_lifts_nothing_that_the_operator_imposes() -> None:
    for role, permissions in OF_PROJECT_ROLE.items():
        assert not permissions & {"limits.write", "projects.write", "billing.write", "users.write"}, role
        assert permissions < OF_ROLE["owner"]
    assert OF_PROJECT_ROLE["owner"] - OF_PROJECT_ROLE["admin"] == {"owners.write"}
    assert OF_PROJECT_ROLE["viewer"] < READ


def test_scopes_cover_the_admin_api_between_them() -> None:
    assert scope_permissions(["admin_read", "admin_write"]) == ALL - {"content.read"}
    assert not scope_permissions(["admin_read"]) & scope_permissions(["admin_write"])
    assert scope_permissions(["inference"]) == frozenset()
    assert scope_permissions(["adapters"]) == {"adapters.read", "adapters.write"}


def test_a_role_in_a_project_counts_there_alone() -> None:
    member = actor(frozenset(), proj_a=project_role_permissions("admin"))
    authorize(member, "keys.write", "proj_a")
    with pytest.raises(NotFound, match="No project has the id 'proj_b'"):
        authorize(member, "keys.write", "proj_b")
    with pytest.raises(PermissionDenied, match=r"projects\.write"):
        authorize(member, "projects.write", None)


def test_lacking_a_permission_is_said_to_who_has_a_part_in_the_project() -> None:
    for who in (actor(role_permissions("viewer")), actor(frozenset(), proj_a=project_role_permissions("viewer"))):
        with pytest.raises(PermissionDenied, match=r"keys\.write"):
            authorize(who, "keys.write", "proj_a")


def test_nobody_gives_more_than_they_have() -> None:
    admin, in_project = actor(role_permissions("admin")), actor(frozenset(), proj_a=project_role_permissions("admin"))
    check_grant(admin, role_permissions("admin"))
    check_grant(in_project, project_role_permissions("viewer"), "proj_a")
    check_grant(admin, project_role_permissions("admin"), "proj_a")  # may read content, unlike the organization's admin
    check_grant(actor(scope_permissions(["admin_read", "admin_write"])), role_permissions("owner"))
    for who, granted, project_id in [
        (admin, role_permissions("owner"), None),
        (in_project, project_role_permissions("owner"), "proj_a"),
        (in_project, role_permissions("viewer"), "proj_b"),
        (in_project, role_permissions("viewer"), None),
        (actor(role_permissions("billing")), role_permissions("viewer"), None),
    ]:
        with pytest.raises(PermissionDenied):
            check_grant(who, granted, project_id)
