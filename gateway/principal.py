"""Who sends a request, once its key is known to be good."""

from __future__ import annotations

from typing import Literal

import msgspec

Scope = Literal["inference", "adapters", "admin_read", "admin_write"]


class Principal(msgspec.Struct, frozen=True):
    """The owner of an API key. A tenant is a project; an operator's key belongs to the organization: project_id is "".

    Ids are strings as the API shows them (`org_...`, `proj_...`, `key_...`).
    """

    organization_id: str
    project_id: str
    api_key_id: str
    scopes: frozenset[Scope]
