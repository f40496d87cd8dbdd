"""The sender of a request, once its key is known to be good."""

from __future__ import annotations

from typing import Literal

import msgspec

Scope = Literal["inference", "feedback", "adapters", "experiments", "usage", "admin_read", "admin_write"]
ServiceTier = Literal["default", "flex", "priority"]
Role = Literal["owner", "admin", "billing", "viewer"]
Permission = Literal[
    "adapters.read",
    "adapters.write",
    "admin_keys.read",
    "admin_keys.write",
    "audit.read",
    "billing.read",
    "billing.write",
    "content.read",
    "content.write",
    "experiments.read",
    "experiments.write",
    "key_limits.write",
    "keys.read",
    "keys.write",
    "limits.read",
    "limits.write",
    "members.read",
    "members.write",
    "organization.read",
    "organization.write",
    "owners.write",
    "pools.read",
    "pools.write",
    "projects.read",
    "projects.write",
    "routes.read",
    "routes.write",
    "users.read",
    "users.write",
]
"""The permissions that a route of the admin API may ask for; `gateway.domain.tenancy.permissions` says which roles have
them. key_limits.write: change the limits of one key of a project, as opposed to those of the project. owners.write:
make somebody an owner, or change one. content.read: see the content of requests and replies, where a project logs it.
content.write: set whether a project logs it."""


class Principal(msgspec.Struct, frozen=True):
    """The owner of an API key. The tenant is a project; an operator's key belongs to the organization.

    Ids are strings as the API shows them (`org_...`, `proj_...`, `key_...`).
    """

    organization_id: str
    project_id: str
    """The id of the project; "" for an operator's key."""
    api_key_id: str
    scopes: frozenset[Scope]
    models: frozenset[str] | None = None
    """Ids of the models that the key may call; None: all."""
    permissions: frozenset[Permission] = frozenset()
    """Permissions in the admin API, within the project or, for an operator's key, the organization."""
    store_days: int = 0
    """Days for which the project stores completions; 0: it does not."""
    log_content_days: int = 0
    """Days for which the project keeps the content of requests and replies; 0: it does not."""
    service_tiers: frozenset[ServiceTier] = frozenset({"default"})
    """The service tiers that requests may ask for."""
    is_batch: bool = False
    """True where a batch acts for the key: every request of it is of the tier `batch`."""
