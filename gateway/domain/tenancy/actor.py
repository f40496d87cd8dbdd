"""The user of the admin API in one request: a key or a person, with permissions and network address."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from gateway.domain.tenancy.principal import Permission


class Actor(msgspec.Struct, frozen=True, kw_only=True):
    """id: of the key or the user. login_id: of a person's login, None for a key.

    permissions count in the whole organization, project_permissions in single projects, beside those.
    address, request_id: for the audit log.
    """

    kind: Literal["api_key", "user"]
    id: str
    organization_id: str
    permissions: frozenset[Permission]
    project_permissions: Mapping[str, frozenset[Permission]]
    address: str
    request_id: str
    email: str | None = None
    login_id: str | None = None
