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
"""The permissions for which a route of the admin API may ask; `gateway.domain.tenancy.permissions` says who has which.

key_limits.write is about limits of one key of a project, as opposed to those of the project. owners.write makes
somebody an owner, or changes one. content.read shows what requests said and got, where a project logs it; content.write
says whether it does.
"""


class Principal(msgspec.Struct, frozen=True):
    """The owner of an API key. A tenant is a project; an operator's key belongs to the organization: project_id is "".

    Ids are strings as the API shows them (`org_...`, `proj_...`, `key_...`). models: ids the key may call, None for
    all. permissions: in the admin API, within the project or, for an operator's key, the organization. store_days: how
    long the project stores completions, log_content_days: how long it keeps what requests say and get; 0: it does not.
    """

    organization_id: str
    project_id: str
    api_key_id: str
    scopes: frozenset[Scope]
    models: frozenset[str] | None = None
    permissions: frozenset[Permission] = frozenset()
    store_days: int = 0
    log_content_days: int = 0
    service_tiers: frozenset[ServiceTier] = frozenset({"default"})
    """The service tiers that requests may ask for."""
    is_batch: bool = False
    """True where a batch acts for the key: every request of it is of the tier `batch`."""
