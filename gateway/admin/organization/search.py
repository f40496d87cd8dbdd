"""Finds tenants, keys, adapters, experiments, pools, people, requests and refusals by a part of their names or ids.

The caller finds only objects that it may see.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from litestar import Request, get

from gateway.admin.access import needs
from gateway.admin.paging import wrong_value
from gateway.admin.services import Caller, Services
from gateway.db.ledger.refusals import find_refusal
from gateway.db.ledger.requests import find_request
from gateway.db.organization import find
from gateway.domain.tenancy.permissions import has_permission, projects_with
from gateway.http.shape import shape

MAX_RESULTS = 20
MAX_EACH = 8
MAX_CHARS = 128
REQUEST_ID_PREFIX = "req_"


class SearchResult(msgspec.Struct, frozen=True):
    """An object that a search found."""

    kind: Literal["project", "api_key", "adapter", "experiment", "pool", "user", "request", "refusal"]
    id: str
    name: str
    project_id: str | None
    href: str
    """The address of the dashboard's page that shows the result."""


class SearchResults(msgspec.Struct, frozen=True):
    """Objects that a search found."""

    data: list[SearchResult]
    object: Literal["list"] = "list"


TEXT = {"type": "string", "minLength": 1, "maxLength": MAX_CHARS}


@get("/search", opt=needs("projects.read", query=("q",), in_any_project=True) | shape(query={"q": TEXT}, needed=("q",)))
async def search(request: Request[Any, Any, Any], services: Services, caller: Caller) -> SearchResults:
    """Search for projects, users, keys, adapters, experiments, pools and requests.

    Names and addresses are found by any part, in upper or lower case; ids as a whole. At most 20 results are returned.
    """
    given = request.query_params.get("q", "").strip()
    if not 1 <= len(given) <= MAX_CHARS:
        raise wrong_value("q", f"expected 1 to {MAX_CHARS} characters")
    text, organization_id = given.lower(), caller.organization_id
    found: list[find.SearchResult] = []
    results: list[SearchResult] = []
    async with services.database.acquire() as conn:
        if given.startswith(REQUEST_ID_PREFIX):
            row = await find_request(conn, organization_id, given)
            if row is not None and has_permission(caller, "billing.read", row.project_id):
                id, href = row.request_id, f"/admin/requests/{row.request_id}"
                results.append(SearchResult("request", id, id, row.project_id, href))
            refused = await find_refusal(conn, organization_id, given)
            if refused is not None and has_permission(caller, "limits.read", refused.project_id):
                href = f"/admin/refusals?q={given}"
                results.append(SearchResult("refusal", given, given, refused.project_id, href))
        found += await find.find_projects(conn, organization_id, projects_with(caller, "projects.read"), text, MAX_EACH)
        found += await find.find_adapters(conn, organization_id, projects_with(caller, "adapters.read"), text, MAX_EACH)
        experiments_of = projects_with(caller, "experiments.read")
        found += await find.find_experiments(conn, organization_id, experiments_of, text, MAX_EACH)
        found += await find.find_keys(conn, organization_id, projects_with(caller, "keys.read"), text, MAX_EACH)
        if "pools.read" in caller.permissions:
            found += await find.find_pools(conn, organization_id, text, MAX_EACH)
        if "users.read" in caller.permissions:
            found += await find.find_users(conn, organization_id, text, MAX_EACH)
    results += [SearchResult(each.kind, each.id, each.name, each.project_id, _href(each)) for each in found]
    return SearchResults(results[:MAX_RESULTS])


def _href(found: find.SearchResult) -> str:
    match found.kind:
        case "project":
            return f"/admin/tenants/{found.id}/overview"
        case "api_key":
            return f"/admin/tenants/{found.project_id}/keys?key={found.id}"
        case "adapter":
            return f"/admin/adapters/{found.project_id}/{found.name}"
        case "pool":
            return f"/admin/models/{found.id}"
        case "experiment":
            return f"/admin/experiments/{found.project_id}/{found.id}"
        case "user":
            return f"/admin/system/users?user={found.id}"
