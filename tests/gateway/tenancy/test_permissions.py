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
    of_project_role,
    of_role,
    of_scopes,
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
    assert of_scopes(["admin_read", "admin_write"]) == ALL - {"content.read"}
    assert not of_scopes(["admin_read"]) & of_scopes(["admin_write"])
    assert of_scopes(["inference"]) == frozenset()
    assert of_scopes(["adapters"]) == {"adapters.read", "adapters.write"}


def test_a_role_in_a_project_counts_there_alone() -> None:
    member = actor(frozenset(), proj_a=of_project_role("admin"))
    authorize(member, "keys.write", "proj_a")
    with pytest.raises(NotFound, match="No project has the id 'proj_b'"):
        authorize(member, "keys.write", "proj_b")
    with pytest.raises(PermissionDenied, match=r"projects\.write"):
        authorize(member, "projects.write", None)


def test_lacking_a_permission_is_said_to_who_has_a_part_in_the_project() -> None:
    for who in (actor(of_role("viewer")), actor(frozenset(), proj_a=of_project_role("viewer"))):
        with pytest.raises(PermissionDenied, match=r"keys\.write"):
            authorize(who, "keys.write", "proj_a")


def test_nobody_gives_more_than_they_have() -> None:
    admin, in_project = actor(of_role("admin")), actor(frozenset(), proj_a=of_project_role("admin"))
    check_grant(admin, of_role("admin"))
    check_grant(in_project, of_project_role("viewer"), "proj_a")
    check_grant(admin, of_project_role("admin"), "proj_a")  # may read content, unlike the organization's admin
    check_grant(actor(of_scopes(["admin_read", "admin_write"])), of_role("owner"))
    for who, granted, project_id in [
        (admin, of_role("owner"), None),
        (in_project, of_project_role("owner"), "proj_a"),
        (in_project, of_role("viewer"), "proj_b"),
        (in_project, of_role("viewer"), None),
        (actor(of_role("billing")), of_role("viewer"), None),
    ]:
        with pytest.raises(PermissionDenied):
            check_grant(who, granted, project_id)
