"""The callers of the admin API, from nobody to an owner, and what each of them may do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import httpx
import msgspec

from gateway.domain.tenancy.principal import Role
from tests.gateway.admin.routes import Route

ROLES: tuple[Role, ...] = ("owner", "admin", "billing", "viewer")

# Written out by hand, so that a slip in the table of roles shows.
MAY: dict[str, frozenset[str]] = {
    "viewer": frozenset(
        f"{what}.read"
        for what in (
            "adapters",
            "billing",
            "experiments",
            "keys",
            "limits",
            "members",
            "organization",
            "pools",
            "projects",
            "routes",
            "users",
        )
    ),
    "billing": frozenset(
        {"billing.read", "billing.write", "limits.read", "projects.read", "keys.read", "organization.read"}
    ),
}
MAY["admin"] = (
    MAY["viewer"]
    | {"audit.read", "admin_keys.read"}
    | {
        f"{what}.write"
        for what in (
            "adapters",
            "admin_keys",
            "billing",
            "content",
            "experiments",
            "key_limits",
            "keys",
            "limits",
            "members",
            "pools",
            "projects",
            "routes",
            "users",
        )
    }
)
MAY["keys"] = MAY["admin"] | {"organization.write", "owners.write"}
MAY["owner"] = MAY["keys"] | {"content.read"}  # a person's alone
MAY["admin_read"] = frozenset(name for name in MAY["keys"] if name.endswith(".read"))
MAY["admin_write"] = MAY["keys"] - MAY["admin_read"]
MAY["key adapters"] = frozenset({"adapters.read", "adapters.write"})
MAY["key experiments"] = frozenset({"experiments.read", "experiments.write", "projects.read"})
MAY["key usage"] = frozenset({"billing.read"})

# In a project of theirs. The operator's limits and suspension are not the customer's to lift.
MAY_IN_PROJECT: dict[str, frozenset[str]] = {
    "viewer": frozenset(
        f"{what}.read"
        for what in ("adapters", "billing", "experiments", "keys", "limits", "members", "projects", "routes")
    ),
    "billing": frozenset({"billing.read", "limits.read", "projects.read", "keys.read"}),
}
MAY_IN_PROJECT["admin"] = MAY_IN_PROJECT["viewer"] | {
    f"{what}.write" for what in ("adapters", "experiments", "key_limits", "keys", "members", "routes")
}
MAY_IN_PROJECT["admin"] |= {"audit.read", "content.read", "content.write"}
MAY_IN_PROJECT["owner"] = MAY_IN_PROJECT["admin"] | {"owners.write"}


class Cast(msgspec.Struct):
    """All callers by name, and the objects that their requests are about."""

    callers: dict[str, httpx.AsyncClient]
    project_id: str
    routes: list[Route]
    url: str

    async def call(self, who: str, route: Route, body: Any, **ids: str) -> httpx.Response:
        query = {"after": "unknown"} if route.access and "after" in route.access.query else {}
        url = f"{self.url}{route.at(project_id=self.project_id, **ids)}"
        async with self.callers[who].stream(route.method, url, json=body, params=query) as reply:
            if not reply.headers.get("content-type", "").startswith("text/event-stream"):  # which has no end
                await reply.aread()
        return reply


def expected(who: str, route: Route) -> set[int]:
    """Return the statuses that a request with an unknown field may get. 400 and 404 mean that the request passed the
    guard."""
    assert route.access is not None
    permission, in_project = route.access.permission, "project_id" in route.params
    through = {400} if route.access.body else {200, 400, 404}
    role, _, where = who.partition(" of ")
    if who in ("anonymous", "stranger", "unknown key"):
        return {401}
    if permission is None:
        return through if where else {403}
    if who in ("admin_read", "admin_write"):
        return through if permission in MAY[who] else {403}
    if where == "organization":
        return through if permission in MAY[role] else {403}
    mine = MAY_IN_PROJECT[role] if where else MAY.get(who, frozenset())
    counts = in_project or route.access.in_any_project
    if in_project and where == "globex":
        return {404}
    return through if counts and permission in mine else {403}


def asked_by(callers: Iterable[str], routes: Iterable[Route], full: bool) -> Iterator[tuple[Route, list[str]]]:
    """Yield each route with the callers to test it with.

    Everybody calls the first of the routes that are guarded alike. Unless `full`, the others are called without a key
    and by every fourth caller in turns.
    """
    others, seen = [who for who in callers if who != "anonymous"], set[tuple[Any, ...]]()
    for number, route in enumerate(routes):
        assert route.access is not None
        access = route.access
        guard = (access.permission, access.in_any_project, "project_id" in route.params, access.body is None)
        yield route, ["anonymous", *(others if full or guard not in seen else others[number % 4 :: 4])]
        seen.add(guard)
