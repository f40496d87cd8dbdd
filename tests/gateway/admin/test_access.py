"""Every route of the admin API, found in the application's own table, against every kind of caller and every field."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

import httpx
import msgspec
import pytest
from litestar import Router, get

from gateway.admin.access import Nothing, UndeclaredRoute, check_routes, needs
from gateway.admin.limits.spend_alerts import SetSpendAlert
from gateway.db.organization.audit import Author
from gateway.db.pools.pools import create_pool
from gateway.db.pools.provider_keys import list_provider_keys
from gateway.db.pools.replicas import add_running_replica
from gateway.db.pools.revisions import add_revision
from gateway.domain.tenancy.keys import new_key
from gateway.domain.tenancy.principal import Permission, Role
from tests.gateway.admin.authenticator import Device
from tests.gateway.admin.routes import EXPERIMENT, GOOD_BODIES, ROUTE, Route, routes_of
from tests.gateway.admin_server import PASSWORD, AdminServer

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


@pytest.fixture
async def cast(server: AdminServer, operator: httpx.AsyncClient, acme: str) -> AsyncIterator[Cast]:
    keys = {"anonymous": None, "stranger": "sk-lk-x", "unknown key": new_key("admin").secret}
    keys |= {"admin_read": await server.admin_key("admin_read"), "admin_write": await server.admin_key("admin_write")}
    for scope in ("inference", "adapters", "experiments", "usage"):
        keys[f"key {scope}"] = (await operator.post(f"{acme}/api_keys", json={"scopes": [scope]})).json()["value"]
    globex = f"/projects/{(await operator.post('/projects', json={'name': 'globex'})).json()['id']}"
    routes = [route for route in routes_of(server.app) if route.access is not None]
    async with contextlib.AsyncExitStack() as stack:
        callers = {name: await stack.enter_async_context(server.client(key)) for name, key in keys.items()}
        for where, project in (("organization", None), ("acme", acme), ("globex", globex)):
            for role in ROLES:
                user = await server.user(f"{role}@{where}.example.com", None if project else role)
                if project:
                    await operator.post(f"{project}/users", json={"user_id": user["id"], "role": role})
                callers[f"{role} of {where}"] = await stack.enter_async_context(server.person(user["email"]))
        yield Cast(callers, acme.removeprefix("/projects/"), routes, server.url)


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
    """Yield each route with its callers.

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


async def test_every_role_reaches_what_it_may_and_nothing_else(cast: Cast, full: bool) -> None:
    assert len(cast.routes) > 50
    wrong = []
    for route, callers in asked_by(cast.callers, cast.routes, full):
        body = {"surprise": 1} if route.access and route.access.body else None
        for who in callers:
            reply = await cast.call(who, route, body)
            if reply.status_code not in expected(who, route):
                wrong.append(f"{who}: {route} answers {reply.status_code}, not {expected(who, route)}: {reply.text}")
            if reply.status_code == 400 and body:
                assert reply.json()["error"]["param"] == "surprise", (who, str(route))
    assert wrong == []


MEANT = {
    (): "organization",
    ("status",): "organization",
    ("engines",): "organization",
    ("requests",): "billing",
    ("live",): "projects",
    ("alerts",): "projects",
    ("search",): "projects",
    ("traffic",): "billing",
    ("traffic", "top"): "billing",
    ("projects", "traffic"): "billing",
    ("refusals",): "limits",
    ("projects", "refusals"): "limits",
    ("projects", "requests"): "billing",
    ("projects", "batches"): "billing",
    ("projects", "files"): "content",
    ("projects", "files", "content"): "content",
    ("projects", "requests", "content"): "content",
    ("projects", "requests", "response"): "content",
    ("projects", "stored_conversations"): "content",
    ("projects", "content_logging"): "content",
    ("reconciliation",): "organization",
    ("reconciliation", "lost_journals"): "billing",
    ("projects",): "projects",
    ("projects", "users"): "members",
    ("projects", "service_accounts"): "keys",
    ("projects", "api_keys"): "keys",
    ("projects", "adapters"): "adapters",
    ("projects", "adapters", "versions"): "adapters",
    ("projects", "adapter_imports"): "adapters",
    ("adapters",): "adapters",
    ("projects", "adapters", "shares"): "organization",
    ("projects", "aliases"): "adapters",
    ("projects", "routes"): "routes",
    ("projects", "routes", "versions"): "routes",
    ("projects", "experiments"): "experiments",
    ("projects", "experiments", "results"): "experiments",
    ("projects", "experiments", "timeline"): "experiments",
    ("projects", "experiments", "ages"): "experiments",
    ("projects", "experiments", "exports"): "experiments",
    ("projects", "experiments", "exposures"): "experiments",
    ("projects", "experiments", "health"): "experiments",
    ("projects", "experiment_layers"): "experiments",
    ("projects", "experiment_units"): "experiments",
    ("projects", "feedback_metrics"): "experiments",
    ("projects", "holdouts"): "experiments",
    ("routes",): "routes",
    ("routes", "versions"): "routes",
    ("projects", "shared_routes"): "routes",
    ("projects", "plans"): "routes",
    ("pools",): "pools",
    ("pools", "key"): "pools",
    ("pools", "scalings"): "pools",
    ("pools", "adapters"): "pools",
    ("projects", "provider_keys"): "keys",
    ("replicas",): "pools",
    ("hosts",): "pools",
    ("hosts", "tokens"): "pools",
    ("projects", "models"): "projects",
    ("projects", "limits"): "limits",
    ("projects", "rate_limits"): "limits",
    ("projects", "spend_limit"): "limits",
    ("projects", "spend_alerts"): "limits",
    ("spend_limit",): "limits",
    ("spend_alerts",): "limits",
    ("limits",): "limits",
    ("webhooks",): "limits",
    ("usage", "completions"): "billing",
    ("usage", "embeddings"): "billing",
    ("costs",): "billing",
    ("prices",): "billing",
    ("periods",): "billing",
    ("periods", "invoices"): "billing",
    ("projects", "invoices"): "billing",
    ("projects", "credits"): "billing",
    ("projects", "billing"): "billing",
    ("projects", "adapters", "price_class"): "billing",
    ("projects", "adjustments"): "billing",
    ("exports",): "billing",
    ("projects", "exports"): "billing",
    ("deliveries",): "billing",
    ("projects", "stripe_customer"): "billing",
    ("api_keys",): "keys",
    ("users",): "users",
    ("users", "logins"): "users",
    ("users", "passkeys"): "users",
    ("users", "api_keys"): "users",
    ("admin_api_keys",): "admin_keys",
    ("audit_logs",): "audit",
}
"""The kind of object that a path is about, by the path without ids and actions."""
MEANT_TO_CHANGE = {
    ("projects", "limits"): "key_limits",
    ("projects", "adapters", "shares"): "projects",
    ("projects", "batches"): "keys",
    ("projects", "files"): "keys",
}
"""The kind for changes, where it differs; limits of the project itself depend on the body."""
ACTIONS = {"close", "suspend", "resume", "archive", "rotate", "reset", "verify", "write_off"} | {
    "promote",
    "retire",
    "rollback",
    "complete",
    "drain",
    "restart",
    "cancel",
    "start",
    "pause",
    "stop",
    "decide",
    "preview",
    "explain",
    "calibrate",
    "forget",
}

ACTIONS_THAT_READ = {"explain"}
"""Actions that take a body and change nothing."""


def test_each_route_names_the_permission_that_its_path_and_method_call_for(server: AdminServer) -> None:
    for route in routes_of(server.app):
        if route.path.startswith("/v1/organization") and route.access:
            words = route.path.removeprefix("/v1/organization").split("/")
            about = tuple(word for word in words if word and word[0] != "{" and word not in ACTIONS)
            reads, writes = f"{MEANT[about]}.read", f"{MEANT_TO_CHANGE.get(about, MEANT[about])}.write"
            is_read = route.method == "GET" or words[-1] in ACTIONS_THAT_READ
            assert route.access.permission == (reads if is_read else writes), str(route)
        elif route.access:
            assert (route.path[:10], route.access.permission) == ("/admin/v1/", None), str(route)


async def test_a_route_without_a_permission_cannot_be_registered() -> None:
    @get("/open")
    async def undeclared() -> None: ...

    @get("/declared", opt=needs("projects.read"))
    async def declared() -> None: ...

    check_routes(Router("/", route_handlers=[declared]))
    with pytest.raises(UndeclaredRoute, match="GET /open names no permission"):
        check_routes(Router("/", route_handlers=[declared, undeclared]))


def test_every_permission_is_some_routes(server: AdminServer) -> None:
    import typing

    named = {route.access.permission for route in routes_of(server.app) if route.access}
    about_fields = {"owners.write"}
    assert named - {None} == set(typing.get_args(Permission)) - about_fields


async def test_every_field_and_query_parameter_is_checked_by_name(cast: Cast) -> None:
    wrong = []
    for route in cast.routes:
        assert route.access is not None
        body, who = route.good_body, "owner of organization"
        if body is None or route.access.body is Nothing:
            continue
        fields = {field.name: field for field in msgspec.structs.fields(route.access.body)}  # type: ignore[arg-type]
        assert set(fields) == set(body), "GOOD_BODIES knows every field"
        for name, field in fields.items():
            bad: list[Any] = [{"an": "object"}, "\0", [[]], -1, 2**70]
            if field.default is msgspec.NODEFAULT and field.default_factory is msgspec.NODEFAULT:
                bad.append(None)
            for value in bad:
                reply = await cast.call(who, route, body | {name: value})
                param = (reply.json().get("error") or {}).get("param") or ""
                # A text that is taken as text may be wrong for other reasons than its type.
                if reply.status_code not in (400, 401) or (reply.status_code == 400 and not param.startswith(name)):
                    if value == "\0" and name in ("password", "code"):
                        continue
                    if name in ("metadata", "labels", "placement", "exclusion") and isinstance(
                        value, dict
                    ):  # which is what it is
                        continue
                    wrong.append(f"{route} {name}={value!r}: {reply.status_code} {reply.text}")
    assert wrong == []

    # And the same of query parameters.
    for route in cast.routes:
        url = f"{cast.url}{route.at(project_id=cast.project_id)}?surprise=1"
        reply = await cast.callers["owner of organization"].request(route.method, url)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "surprise"), str(route)


class Foreign(msgspec.Struct, frozen=True):
    """Ids of another organization's objects."""

    project_id: str
    user_id: str
    account_id: str
    key_id: str
    admin_key_id: str
    limit_id: str
    webhook_id: str
    alert_id: str
    delivery_id: str
    import_id: str
    pool_id: str
    replica_id: str
    experiment_id: str
    provider_key_id: str
    file_id: str
    batch_id: str
    passkey_id: str
    rate_limit_id: str = "rl-tiny:pirate"
    name: str = "pirate"

    @property
    def other_project_id(self) -> str:
        return self.project_id


@pytest.fixture
async def foreign(server: AdminServer) -> Foreign:
    key = await server.admin_key("admin_read", "admin_write", organization="other")
    user = await server.user("someone@other.example.com", "owner", key)
    async with server.client(key) as other:
        project = (await other.post("/projects", json={"name": "theirs"})).json()["id"]
        account = (await other.post(f"/projects/{project}/service_accounts", json={"name": "bot"})).json()
        admin_key = (await other.post("/admin_api_keys", json={"name": "theirs"})).json()["id"]
        await other.post(f"/projects/{project}/users", json={"user_id": user["id"], "role": "viewer"})
        limit = (await other.post("/limits", json={"unit": "tokens", "window": "day", "max": 1})).json()["id"]
        webhook = (await other.post("/webhooks", json={"url": "https://example.com/theirs"})).json()["id"]
        alert = (await other.post("/spend_alerts", json=GOOD_BODIES[SetSpendAlert])).json()["id"]
        delivery = {"name": "theirs", "kind": "usage", "format": "csv", "schedule": "daily"}
        delivery |= {"destination": {"type": "folder", "path": "theirs"}}
        delivered = (await other.post("/deliveries", json=delivery)).json()["id"]
        upload = {"name": "pirate", "size_bytes": 9}
        import_id = (await other.post(f"/projects/{project}/adapter_imports", json=upload)).json()["id"]
        refused = await other.post("/pools", json={"name": "theirs", "model": "demo"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "insufficient_permissions")
        organization_id = (await other.get("")).json()["id"]
    async with server.services.database.transaction() as conn:
        made = await create_pool(conn, organization_id, "theirs", num_replicas=1)
        assert made is not None
        pool = made.id
        await add_revision(conn, pool, "demo", {})
        replica = (await add_running_replica(conn, pool, 1, "ipc:///run/theirs.sock")).id
        await server.services.provider_keys.keep(conn, project, pool, "sk-0123456789abcdef")
        (provider_key,) = await list_provider_keys(conn, project)
    file_id, batch_id = await _make_batch(server, organization_id, project, account["api_key"]["id"])
    async with server.client(key) as other:
        experiment = (await other.post(f"/projects/{project}/experiments", json=EXPERIMENT)).json()["id"]
        metric = {"name": "pirate", "type": "boolean", "goal": "increase"}
        for path, body in (
            ("feedback_metrics", metric),
            ("experiment_layers", {"name": "pirate"}),
            ("holdouts", {"name": "pirate", "size": 1}),
            ("routes", {"name": "pirate", "document": ROUTE}),
        ):
            made_there = await other.post(f"/projects/{project}/{path}", json=body)
            assert made_there.status_code == 200, made_there.text
        shared = await other.post("/routes", json={"name": "pirate", "document": ROUTE})
        assert shared.status_code == 200, shared.text
    passkey = await _add_passkey(server, user["email"])
    ids = (user["id"], account["id"], account["api_key"]["id"], admin_key, limit, webhook, alert, delivered, import_id)
    return Foreign(project, *ids, pool, replica, experiment, provider_key.id, file_id, batch_id, passkey)


async def _add_passkey(server: AdminServer, email: str) -> str:
    """Return the id of a new passkey of a person."""
    async with server.person(email) as person:
        url = f"{server.url}/admin/v1/passkeys"
        asked = (await person.post(url, json={"password": PASSWORD})).json()
        made = await person.post(f"{url}/confirm", json=Device().make(asked))
        assert made.status_code == 200, made.text
        return str(made.json()["id"])


async def _make_batch(server: AdminServer, organization_id: str, project_id: str, key_id: str) -> tuple[str, str]:
    """Return the ids of a new file and of a batch of that file."""
    files = server.services.files
    part = await files.content.begin(project_id)
    await part.write(b"{}")
    await part.flush()
    file = await files.make(project_id, part, name="a.jsonl", purpose="batch", keep_seconds=None)
    author = Author(organization_id=organization_id, kind="api_key", id=key_id, email=None, address="", request_id="")
    batch = await server.services.batches.create(
        project_id,
        author,
        api_key_id=key_id,
        endpoint="/v1/completions",
        input_file_id=file.id,
        metadata={},
        keep_seconds=None,
    )
    return file.id, batch.row.id


async def test_other_tenants_ids_answer_as_nonexistent_ones_to_the_byte(cast: Cast, foreign: Foreign) -> None:
    """Both ids have the same length; each reply is compared without the id that was asked for."""
    compared = 0
    for route in cast.routes:
        for param in route.params:
            theirs = foreign.admin_key_id if "admin_api_keys" in route.path else getattr(foreign, param, None)
            if theirs is None:
                # Journals and hosts are the whole installation's, versions are numbers under an adapter's name;
                # requests have tests of their own.
                assert param in (
                    "login_id",
                    "host_id",
                    "request_id",
                    "conversation_id",
                    "period",
                    "journal_id",
                    "version",
                    "version_id",
                )
                continue
            nobody = theirs[:-4] + ("aaaa" if theirs[-4:] != "aaaa" else "bbbb")
            for who in ("owner of organization", "owner of acme", "admin_read", "admin_write", "key adapters"):
                replies = []
                for object_id in (theirs, nobody):
                    url = route.at(**({"project_id": cast.project_id} | {param: object_id}))
                    reply = await cast.callers[who].request(route.method, f"{cast.url}{url}", json=route.good_body)
                    replies.append((reply.status_code, reply.content.replace(object_id.encode(), b"ID")))
                assert replies[0] == replies[1], (who, str(route))
                assert replies[0][0] in (400, 403, 404), (who, str(route))
                compared += 1
    assert compared > 150


async def test_other_tenants_ids_take_as_long_as_nonexistent_ones(cast: Cast, foreign: Foreign, full: bool) -> None:
    """A request about another tenant's object takes longer than one about nothing with a probability of about a
    half."""
    if not full:
        pytest.skip("measures time: runs with --full")
    caller, told = cast.callers["owner of organization"], {}
    for route in cast.routes:
        for param in route.params:
            theirs = foreign.admin_key_id if "admin_api_keys" in route.path else getattr(foreign, param, None)
            if theirs is None:
                continue
            seconds: dict[str, list[float]] = {theirs: [], theirs[:-4] + "aaaa": []}
            for number in range(400):
                object_id = [*seconds][number % 2]
                url = route.at(**({"project_id": cast.project_id} | {param: object_id}))
                start_s = time.perf_counter()
                await caller.request(route.method, f"{cast.url}{url}", json=route.good_body)
                seconds[object_id].append(time.perf_counter() - start_s)
            longer = sum(mine > other for mine in seconds[theirs] for other in [*seconds.values()][1])
            told[f"{route} {param}"] = longer / 200**2
    print(*(f"{share:.3f} {what}" for what, share in sorted(told.items(), key=lambda item: item[1])), sep="\n")
    assert all(0.35 < share < 0.65 for share in told.values())  # a deviation of 0.15 is five of one such measure


async def test_other_tenants_ids_in_bodies_and_cursors_answer_as_nonexistent_ones(
    foreign: Foreign, operator: httpx.AsyncClient, acme: str
) -> None:
    for theirs, send in [
        (foreign.user_id, lambda id: operator.post(f"{acme}/users", json={"user_id": id, "role": "viewer"})),
        (foreign.account_id, lambda id: operator.post(f"{acme}/api_keys", json={"service_account_id": id})),
        (foreign.project_id, lambda id: operator.get("/projects", params={"after": id})),
        (foreign.key_id, lambda id: operator.get(f"{acme}/api_keys", params={"after": id})),
        (foreign.user_id, lambda id: operator.get("/users", params={"after": id})),
        (foreign.account_id, lambda id: operator.get(f"{acme}/service_accounts", params={"after": id})),
        (foreign.admin_key_id, lambda id: operator.get("/admin_api_keys", params={"after": id})),
        (foreign.limit_id, lambda id: operator.get("/limits", params={"after": id})),
        (foreign.limit_id, lambda id: operator.get(f"{acme}/limits", params={"after": id})),
        (foreign.rate_limit_id, lambda id: operator.get(f"{acme}/rate_limits", params={"after": id})),
        (foreign.webhook_id, lambda id: operator.get("/webhooks", params={"after": id})),
        (foreign.alert_id, lambda id: operator.get("/spend_alerts", params={"after": id})),
        (foreign.alert_id, lambda id: operator.get(f"{acme}/spend_alerts", params={"after": id})),
        (foreign.delivery_id, lambda id: operator.get("/deliveries", params={"after": id})),
        (foreign.experiment_id, lambda id: operator.get(f"{acme}/experiments", params={"after": id})),
        (foreign.pool_id, lambda id: operator.get("/pools", params={"after": id})),
        (foreign.replica_id, lambda id: operator.get("/replicas", params={"after": id})),
        (foreign.pool_id, lambda id: operator.get(f"{acme}/models", params={"after": id})),
        (foreign.batch_id, lambda id: operator.get(f"{acme}/batches", params={"after": id})),
        (
            foreign.key_id,
            lambda id: operator.post(
                f"{acme}/limits", json={"unit": "tokens", "window": "day", "max": 1, "api_key_id": id}
            ),
        ),
    ]:
        replies = [
            (reply.status_code, reply.content.replace(id.encode(), b"ID"))
            for id in (theirs, theirs[:-4] + "aaaa")
            for reply in [await send(id)]
        ]
        assert replies[0] == replies[1]
        assert replies[0][0] == 400


async def test_lists_hold_nothing_of_another_organization(
    foreign: Foreign, operator: httpx.AsyncClient, acme: str
) -> None:
    everything = ""
    for path in (
        "/projects",
        "/users",
        "/admin_api_keys",
        "/audit_logs",
        "/limits",
        "/webhooks",
        "/deliveries",
        "/pools",
        "/replicas",
    ):
        everything += (await operator.get(path, params={"limit": 100})).text
    for theirs in msgspec.structs.astuple(foreign)[:-2]:
        assert theirs not in everything


async def test_a_member_sees_the_projects_they_are_in(cast: Cast, server: AdminServer) -> None:
    for who, names in [
        ("viewer of acme", ["acme"]),
        ("viewer of globex", ["globex"]),
        ("viewer of organization", ["acme", "globex"]),
    ]:
        listed = (await cast.callers[who].get("/projects")).json()["data"]
        assert [project["name"] for project in listed] == names
    assert (await cast.callers["viewer of acme"].get("/projects", params={"name": "globex"})).json()["data"] == []


async def test_nobody_raises_anybody_above_themselves(cast: Cast, operator: httpx.AsyncClient, acme: str) -> None:
    users = {user["email"]: user["id"] for user in (await operator.get("/users", params={"limit": 100})).json()["data"]}
    admin, member = cast.callers["admin of organization"], cast.callers["admin of acme"]
    owner_id = users["owner@organization.example.com"]
    for caller, method, path, body in [
        (admin, "POST", f"/users/{users['admin@organization.example.com']}", {"role": "owner"}),
        (admin, "POST", "/users", {"email": "new@example.com", "role": "owner"}),
        (admin, "POST", f"/users/{owner_id}", {"role": "viewer"}),
        (admin, "POST", f"/users/{owner_id}/reset", {"password": "a long new password"}),
        (admin, "DELETE", f"/users/{owner_id}", None),
        (admin, "DELETE", f"/users/{owner_id}/logins", None),
        (admin, "POST", f"{acme}/users", {"user_id": owner_id, "role": "owner"}),
        (member, "POST", f"{acme}/users/{users['admin@acme.example.com']}", {"role": "owner"}),
        (member, "POST", f"{acme}/users/{users['owner@acme.example.com']}", {"role": "viewer"}),
        (member, "DELETE", f"{acme}/users/{users['owner@acme.example.com']}", None),
    ]:
        reply = await caller.request(method, path, json=body)
        assert (reply.status_code, reply.json()["error"]["code"]) == (403, "insufficient_permissions"), (path, body)


async def test_a_tenants_own_people_bound_its_keys_and_lift_nothing_of_the_operators(
    cast: Cast, operator: httpx.AsyncClient, acme: str
) -> None:
    of_project = {"unit": "tokens", "window": "day", "max": 1}
    theirs = (await operator.post(f"{acme}/limits", json=of_project)).json()
    key = (await operator.post(f"{acme}/api_keys", json={})).json()["id"]
    for who in ("owner of acme", "admin of acme"):
        caller = cast.callers[who]
        for method, path, body in [
            ("POST", f"{acme}/limits", of_project | {"max": 2}),
            ("POST", f"{acme}/limits", of_project | {"unit": "concurrency", "window": "none"}),
            ("DELETE", f"{acme}/limits/{theirs['id']}", None),
            ("POST", f"{acme}/rate_limits/rl-tiny", {"max_requests_per_1_minute": 100}),
            ("POST", acme, {"name": "renamed"}),
            ("POST", f"{acme}/suspend", None),
            ("POST", f"{acme}/resume", None),
            ("POST", f"{acme}/archive", None),
        ]:
            reply = await caller.request(method, path, json=body)
            assert (reply.status_code, reply.json()["error"]["code"]) == (403, "insufficient_permissions"), (who, path)
        mine = await caller.post(f"{acme}/limits", json=of_project | {"api_key_id": key})
        assert (mine.status_code, mine.json()["scope"]) == (200, "key"), mine.text
        assert (await caller.delete(f"{acme}/limits/{mine.json()['id']}")).status_code == 200
    assert (await operator.get(f"{acme}/limits")).json()["data"] == [theirs]


async def test_an_operators_key_never_does_more_than_its_owner(server: AdminServer) -> None:
    await server.user("ann@example.com", "admin")
    async with server.person("ann@example.com") as ann:
        made = (await ann.post("/admin_api_keys", json={"name": "ci"})).json()
    assert made["owner"]["user"]["email"] == "ann@example.com"
    async with server.client(made["value"]) as ci:
        assert (await ci.get("/projects")).status_code == 200
        assert (await ci.post("/suspend")).status_code == 403, "only an owner suspends the organization"
        second = (await ci.post("/admin_api_keys", json={"name": "from ci"})).json()
        assert second["owner"]["user"]["email"] == "ann@example.com"


async def test_a_key_never_gives_more_than_itself(server: AdminServer) -> None:
    await server.user("ann@example.com", "owner")
    soon, later = int(time.time()) + 1000, int(time.time()) + 2000
    narrow = {"scopes": ["admin_write"], "expires_at": soon, "ip_allowlist": ["127.0.0.0/8"]}
    async with server.person("ann@example.com") as ann:
        made = (await ann.post("/admin_api_keys", json={"name": "ci"} | narrow)).json()
        assert made["ip_allowlist"] == ["127.0.0.0/8"]
        (row, *_) = (await ann.get("/audit_logs")).json()["data"]
        assert row["admin_api_key.created"]["after"]["ip_allowlist"] == ["127.0.0.0/8"]
    async with server.client(made["value"]) as ci:
        for change, status, param in [
            ({"scopes": ["admin_read", "admin_write"]}, 403, None),
            ({"scopes": ["admin_read"]}, 403, None),
            ({"expires_at": None}, 400, "expires_at"),
            ({"expires_at": later}, 400, "expires_at"),
            ({"ip_allowlist": None}, 400, "ip_allowlist"),
            ({"ip_allowlist": ["127.0.0.1/32", "10.0.0.0/8"]}, 400, "ip_allowlist"),
            ({"ip_allowlist": ["::/0"]}, 400, "ip_allowlist"),
            ({"ip_allowlist": ["127.0.0.1/8"]}, 400, "ip_allowlist[0]"),
        ]:
            reply = await ci.post("/admin_api_keys", json={"name": "more"} | narrow | change)
            assert (reply.status_code, reply.json()["error"]["param"]) == (status, param), (change, reply.text)
        within = narrow | {"expires_at": soon - 1, "ip_allowlist": ["127.0.0.1/32"]}
        assert (await ci.post("/admin_api_keys", json={"name": "less"} | within)).status_code == 200


async def test_an_operators_key_works_from_its_networks_alone(server: AdminServer, operator: httpx.AsyncClient) -> None:
    body = {"name": "elsewhere", "ip_allowlist": ["192.0.2.0/24"]}
    made = (await operator.post("/admin_api_keys", json=body)).json()
    async with server.client(made["value"]) as elsewhere:
        reply = await elsewhere.get("/projects")
        assert (reply.status_code, reply.json()["error"]["code"]) == (403, "ip_not_allowed")


async def test_nobody_revokes_a_key_that_does_more_than_they_may(
    server: AdminServer, operator: httpx.AsyncClient
) -> None:
    for role in ("owner", "admin"):
        await server.user(f"{role}@example.com", role)
    async with server.person("owner@example.com") as owner, server.person("admin@example.com") as admin:
        keys = [
            (await caller.post("/admin_api_keys", json={"name": "ci"})).json()["id"]
            for caller in (operator, owner, admin)
        ]
        replies = [await admin.delete(f"/admin_api_keys/{key}") for key in keys]
        assert [reply.status_code for reply in replies] == [403, 403, 200]
        replies = [await owner.delete(f"/admin_api_keys/{key}") for key in keys]
        assert [reply.status_code for reply in replies] == [200, 200, 200]


async def test_the_last_owner_stays(server: AdminServer, operator: httpx.AsyncClient) -> None:
    only = await server.user("only@example.com", "owner")
    for method, path, body in [
        ("DELETE", f"/users/{only['id']}", None),
        ("POST", f"/users/{only['id']}", {"role": "admin"}),
    ]:
        reply = await operator.request(method, path, json=body)
        assert (reply.status_code, reply.json()["error"]["code"]) == (409, "last_owner")
    await server.user("second@example.com", "owner")
    assert (await operator.delete(f"/users/{only['id']}")).status_code == 200


async def test_odd_ids_are_not_found(operator: httpx.AsyncClient) -> None:
    for path in ("/projects/%00", "/api_keys/%00", "/projects/%27%20OR%201=1--", "/projects/%C3%A9"):
        assert (await operator.get(path)).status_code == 404, path


async def test_the_status_says_what_runs(operator: httpx.AsyncClient) -> None:
    status = (await operator.get("/status")).json()
    assert (status["version"], status["model"]) == ("0.0.0", "tiny")
    assert status["backend"] == {
        "ready": False,
        "detail": "no engine",
        "stats": None,
        "endpoint": "",
        "engine_id": "",
        "reason": "",
        "server": None,
    }


def test_a_good_body_is_known_for_every_route(server: AdminServer) -> None:
    bodies = {route.access.body for route in routes_of(server.app) if route.access and route.access.body}
    assert bodies - {Nothing} == set(GOOD_BODIES)
