"""Routes in the admin API: names, documents, versions, rollback, and what a route would do with a request."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from gateway.db.routing import routes
from tests.gateway.admin_server import AdminServer

BASE = {"target": "tiny"}
PUBLIC = "http://93.184.216.34:1"
ONE: dict[str, Any] = {"root": BASE}
TWO: dict[str, Any] = {"root": {"fallback": {"nodes": [BASE, BASE]}}}


@pytest.fixture
async def route(operator: httpx.AsyncClient, acme: str) -> str:
    """Return the path of a route."""
    reply = await operator.post(f"{acme}/routes", json={"name": "router", "document": ONE})
    assert reply.status_code == 200, reply.text
    return f"{acme}/routes/router"


async def test_versions_are_added_and_rolled_back_to(operator: httpx.AsyncClient, route: str) -> None:
    made = (await operator.get(route)).json()
    assert (made["version"], made["document"]) == (1, ONE)
    assert (await operator.post(route, json={"document": ONE})).json()["version"] == 1  # nothing new
    updated = (await operator.post(route, json={"document": TWO})).json()
    assert (updated["version"], updated["document"]) == (2, TWO)
    back = (await operator.post(f"{route}/rollback", json={"version": 1})).json()
    assert (back["version"], back["document"]) == (1, ONE)
    assert (await operator.post(route, json={"document": TWO})).json()["version"] == 3
    versions = (await operator.get(f"{route}/versions")).json()["data"]
    assert [(each["version"], each["document"]) for each in versions] == [(3, TWO), (2, TWO), (1, ONE)]
    refused = await operator.post(f"{route}/rollback", json={"version": 9})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "version")
    actions = [each["type"] for each in (await operator.get("/audit_logs")).json()["data"]]
    assert [each for each in actions if each.startswith("route.")][::-1] == [
        "route.created",
        "route.updated",
        "route.rolled_back",
        "route.updated",
    ]


async def test_the_oldest_versions_go_and_never_the_one_that_answers(
    operator: httpx.AsyncClient, route: str, server: AdminServer
) -> None:
    made = (await operator.get(route)).json()
    async with server.services.database.transaction() as conn:
        project_id = await conn.fetchval("SELECT project_id FROM routes WHERE id = $1", made["id"])
        for _ in range(routes.MAX_VERSIONS + 5):
            await routes.update_route(conn, project_id, made["id"], '{"root": {"target": "tiny"}}')
        kept = await routes.list_versions(conn, project_id, made["id"])
        assert len(kept) == routes.MAX_VERSIONS and kept[0].version == routes.MAX_VERSIONS + 6


async def test_a_route_is_refused_a_name_that_is_taken_or_not_allowed(
    operator: httpx.AsyncClient, acme: str, route: str
) -> None:
    taken = await operator.post(f"{acme}/routes", json={"name": "router", "document": ONE})
    assert (taken.status_code, taken.json()["error"]["param"]) == (409, "name")
    for name in ("tiny", "a:b", "UP"):
        refused = await operator.post(f"{acme}/routes", json={"name": name, "document": ONE})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "name")
    for call in (operator.delete(f"{acme}/aliases/router"),):
        refused = await call
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "held_by_route")
    (listed,) = (await operator.get(f"{acme}/aliases")).json()["data"]
    assert (listed["name"], listed["target_kind"]) == ("router", "route")
    assert (await operator.delete(route)).json()["deleted"] is True
    assert (await operator.get(route)).status_code == 404
    assert (await operator.get(f"{acme}/aliases")).json()["data"] == []


async def test_a_target_that_the_project_may_not_use_is_refused_by_its_path(
    operator: httpx.AsyncClient, acme: str, route: str
) -> None:
    for target in ("nobody", "tiny:nobody", "router"):  # the last one is a route
        root = {"fallback": {"nodes": [BASE, {"target": target}]}}
        for path, body in ((route, {}), (f"{acme}/routes", {"name": "other"})):
            reply = await operator.post(path, json=body | {"document": {"root": root}})
            assert reply.status_code == 400, reply.text
            assert reply.json()["error"]["param"] == "document.root.fallback.nodes[1]"


async def test_an_accept_condition_that_cannot_be_compiled_is_refused_by_its_path(
    operator: httpx.AsyncClient, acme: str, route: str
) -> None:
    for accept, place in (({"regex": "(?=a)"}, ".regex"), ({"schema": {"$ref": "#"}}, ".schema.$ref"), ({}, "")):
        document = {"root": {"cascade": {"nodes": [BASE, BASE], "accept": accept}}}
        reply = await operator.post(route, json={"document": document})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, f"document.root.cascade.accept{place}")


async def test_shadow_copies_are_billed_only_to_projects_whose_routes_the_caller_may_write(
    operator: httpx.AsyncClient, acme: str, route: str
) -> None:
    def document(payer: str) -> dict[str, Any]:
        return {"document": {"root": {"shadow": {"node": BASE, "target": "tiny", "payer": payer}}}}

    lab = (await operator.post("/projects", json={"name": "lab"})).json()["id"]
    assert (await operator.post(route, json=document(lab))).status_code == 200
    for payer in ("proj_nobody", "x"):
        reply = await operator.post(route, json=document(payer))
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "document.root.shadow.payer")
    assert (await operator.post(route, json={"document": ONE})).status_code == 200
    await operator.post(f"/projects/{lab}/archive")
    reply = await operator.post(f"{route}/rollback", json={"version": 2})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "document.root.shadow.payer")
    reply = await operator.post(f"{acme}/routes", json={"name": "other"} | document(lab))
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "document.root.shadow.payer")


async def test_explain_tells_hedges_waits_checks_and_copies(operator: httpx.AsyncClient, acme: str) -> None:
    hedge = {"hedge": {"node": BASE, "delay_ms": 70}}
    copied = {"shadow": {"node": hedge, "target": "tiny"}}
    cascade = {"cascade": {"nodes": [copied, BASE], "accept": {"regex": "a"}, "on": []}}
    root = {"fallback": {"nodes": [cascade], "on": ["failed"], "rounds": 2}}
    made = await operator.post(f"{acme}/routes", json={"name": "router", "document": {"root": root}})
    assert made.status_code == 200, made.text
    told = (await operator.post(f"{acme}/routes/router/explain", json={})).json()
    assert [step["then"] for step in told["steps"]] == [
        {"failed": 2, "rejected": 1},
        {"failed": 2},
        {"rejected": 3},
        {},
    ]
    assert [(step["hedge_ms"], step["has_check"]) for step in told["steps"]] == [(70, True), (None, False)] * 2
    assert [bool(step["wait_ms"]) for step in told["steps"]] == [False, False, True, False]
    assert [len(step["copies"]) for step in told["steps"]] == [1, 0, 1, 0]
    assert told["steps"][0]["copies"][0] == {
        "target": "tiny",
        "path": "root.fallback.nodes[0].cascade.nodes[0]",
        "payer": None,
    }


async def test_explain_tells_the_plan_and_the_reasons(operator: httpx.AsyncClient, acme: str) -> None:
    cases = [{"when": {"metadata": {"plan": "paid"}}, "node": BASE}]
    root = {"conditional": {"cases": cases, "otherwise": {"fallback": {"nodes": [BASE, BASE], "on": ["failed"]}}}}
    await operator.post(f"{acme}/routes", json={"name": "router", "document": {"root": root}})
    path = f"{acme}/routes/router/explain"
    paid = (await operator.post(path, json={"metadata": {"plan": "paid"}})).json()
    assert [step["path"] for step in paid["steps"]] == ["root.conditional.cases[0].node"]
    free = (await operator.post(path, json={"request_id": "req_x", "time": "10:00"})).json()
    assert [step["then"] for step in free["steps"]] == [{"failed": 1}, {}]
    assert free["request_id"] == "req_x"
    assert free["trace"][0] == {
        "path": "root.conditional.cases[0]",
        "reason": "does not hold: metadata.plan has another value",
    }
    assert [(each["target"], each["is_usable"]) for each in free["targets"]] == [("tiny", True)]


async def test_a_route_for_all_projects_names_base_models_that_all_may_use(operator: httpx.AsyncClient) -> None:
    made_by = (await operator.get("")).json()["id"]
    made = await operator.post("/routes", json={"name": "everywhere", "document": ONE})
    assert (made.status_code, made.json()["version"]) == (200, 1), made.text
    taken = await operator.post("/routes", json={"name": "everywhere", "document": ONE})
    assert (taken.status_code, taken.json()["error"]["param"]) == (409, "name")
    for name in ("tiny", "a:b"):
        refused = await operator.post("/routes", json={"name": name, "document": ONE})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "name")
    project_id = (await operator.post("/projects", json={"name": "one"})).json()["id"]
    of_one = {"access": "listed", "grants": [{"organization_id": made_by, "project_id": project_id}]}
    few = await operator.post("/pools", json={"name": "few", "engine": "openai", "urls": [PUBLIC]} | of_one)
    assert few.status_code == 200, few.text
    refused = await operator.post("/routes", json={"name": "few", "document": ONE})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "name"), "it would hide the route there"
    for wrong in ("nobody", "few", "everywhere", "tiny:pirate@1", "tiny:UP"):
        document = {"root": {"fallback": {"nodes": [BASE, {"target": wrong}]}}}
        refused = await operator.post("/routes/everywhere", json={"document": document})
        assert refused.status_code == 400, wrong
        assert refused.json()["error"]["param"] == "document.root.fallback.nodes[1]"
    of_adapter = {"root": {"fallback": {"nodes": [{"target": "tiny:support"}, BASE]}}}
    assert (await operator.post("/routes/everywhere", json={"document": of_adapter})).json()["version"] == 2
    assert (await operator.post("/routes/everywhere/rollback", json={"version": 1})).json()["document"] == ONE
    assert (await operator.post("/routes/everywhere/rollback", json={"version": 9})).status_code == 400
    versions = (await operator.get("/routes/everywhere/versions")).json()["data"]
    assert [each["version"] for each in versions] == [2, 1]
    pool = {"name": "everywhere", "engine": "openai", "urls": [PUBLIC]}
    refused = await operator.post("/pools", json=pool)
    assert (refused.status_code, refused.json()["error"]["param"]) == (409, "name"), "a base model would hide the route"
    assert [each["name"] for each in (await operator.get("/routes")).json()["data"]] == ["everywhere"]
    assert (await operator.delete("/routes/everywhere")).json()["deleted"] is True
    assert (await operator.get("/routes/everywhere")).status_code == 404
    actions = [each["type"] for each in (await operator.get("/audit_logs")).json()["data"]]
    assert [each for each in actions if each.startswith("route.")][::-1] == [
        "route.created",
        "route.updated",
        "route.rolled_back",
        "route.deleted",
    ]


async def test_a_projects_own_name_hides_a_route_for_all(operator: httpx.AsyncClient, acme: str) -> None:
    assert (await operator.post("/routes", json={"name": "router", "document": ONE})).status_code == 200
    told = (await operator.post(f"{acme}/routes/router/explain", json={})).json()
    assert (told["name"], [each["target"] for each in told["steps"]]) == ("router", ["tiny"])
    (shared,) = (await operator.get(f"{acme}/shared_routes")).json()["data"]
    assert (shared["name"], shared["is_hidden"]) == ("router", False)
    assert (await operator.get(f"{acme}/routes")).json()["data"] == [], "it is none of the project's"
    assert (await operator.get(f"{acme}/routes/router")).status_code == 404
    for change in ({"document": TWO},):
        assert (await operator.post(f"{acme}/routes/router", json=change)).status_code == 404
    assert (await operator.post(f"{acme}/routes", json={"name": "router", "document": TWO})).status_code == 200
    told = (await operator.post(f"{acme}/routes/router/explain", json={})).json()
    assert len(told["steps"]) == 2
    (shared,) = (await operator.get(f"{acme}/shared_routes")).json()["data"]
    assert shared["is_hidden"] is True


async def test_a_request_to_any_model_is_explained_by_its_body_and_key(
    operator: httpx.AsyncClient, acme: str, route: str
) -> None:
    cases = [{"when": {"metadata": {"plan": "paid"}, "tools": True, "stream": True}, "node": BASE}]
    long = {
        "when": {"prompt_tokens": {"min": 20}},
        "node": {"cascade": {"nodes": [BASE, BASE], "accept": {"regex": "a"}}},
    }
    document = {"root": {"conditional": {"cases": [*cases, long], "otherwise": {"hedge": {"node": BASE}}}}}
    assert (await operator.post(route, json={"document": document})).status_code == 200
    explain = f"{acme}/plans/explain"

    async def path_of(**body: Any) -> str:
        told = await operator.post(explain, json={"model": "router", "body": {"model": "router"} | body})
        assert told.status_code == 200, told.text
        return str(told.json()["steps"][0]["path"])

    message = {"role": "user", "content": "x"}
    assert await path_of(messages=[message]) == "root.conditional.otherwise.hedge.node"
    assert "cases[1]" in await path_of(messages=[message | {"content": "x" * 200}])
    paid = {"metadata": {"plan": "paid"}, "tools": [{"type": "function"}], "stream": True}
    assert await path_of(messages=[message], **paid) == "root.conditional.cases[0].node"
    assert "cases[1]" in await path_of(prompt=[[1] * 10, [2] * 10])
    for wrong, param in (
        ({"messages": []}, "body.messages"),
        ({"prompt": 1}, "body.prompt"),
        ({"prompt": "x", "n": -1}, "body.n"),
        ({"prompt": "x", "metadata": {"a": 1}}, "body.metadata"),
    ):
        refused = await operator.post(explain, json={"model": "router", "body": wrong})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)

    base = (await operator.post(explain, json={"model": "tiny", "body": {"prompt": "abcdefgh"}})).json()
    assert (base["kind"], base["version"], base["prompt_tokens"], base["is_allowed"]) == ("model", None, 2, True)
    assert [(each["target"], each["path"]) for each in base["steps"]] == [("tiny", "root")]
    missing = await operator.post(explain, json={"model": "nobody"})
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")
    held = (await operator.post(f"{acme}/api_keys", json={"name": "held", "models": ["tiny:support"]})).json()
    told = (await operator.post(explain, json={"model": "tiny", "api_key_id": held["id"]})).json()
    assert told["is_allowed"] is False
    assert (await operator.post(explain, json={"model": "tiny", "api_key_id": "key_nobody"})).status_code == 404
