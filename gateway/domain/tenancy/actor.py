"""The user of the admin API in one request: a key or a person, with permissions and network address."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from gateway.domain.tenancy.principal import Permission


class Actor(msgspec.Struct, frozen=True, kw_only=True):
    """The caller of the admin API: a key or a person."""

    kind: Literal["api_key", "user"]
    id: str
    """The id of the key or of the user."""
    organization_id: str
    permissions: frozenset[Permission]
    """The permissions that hold in the whole organization."""
    project_permissions: Mapping[str, frozenset[Permission]]
    """Further permissions by the id of the project in which they hold."""
    address: str
    """The caller's network address, for the audit log."""
    request_id: str
    """The id of the request, for the audit log."""
    email: str | None = None
    login_id: str | None = None
    """The id of a person's login; None for a key."""
