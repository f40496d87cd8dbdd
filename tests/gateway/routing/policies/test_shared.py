"""Routes of an organization answer in all its projects, and a project's own name hides the organization's."""

from __future__ import annotations

import httpx

from tests.gateway.live import LiveGateway
from tests.gateway.routing.policies.routes import DOWN, LARGE, SMALL, Routes, another_tenant, complete, target
from tests.installation.waiting import wait_until


def route_and_target(client: httpx.Client, model: str) -> str:
    reply = complete(client, model)
    assert reply.status_code == 200, reply.text
    return f"{reply.headers.get('x-lorikeet-route')} {reply.headers.get('x-lorikeet-target')}"


def test_a_route_for_all_answers_in_each_project_until_that_has_a_name_like_it(
    made: Routes, client: httpx.Client, gateway: LiveGateway, dsn_of_all: str
) -> None:
    root = {"fallback": {"nodes": [target(DOWN), target(f"{LARGE}:nobody"), target(LARGE)]}}
    made.make_shared("everywhere", root)
    assert route_and_target(client, "everywhere") == f"everywhere@1 {LARGE}", (
        "an adapter that a project lacks is passed over"
    )
    with another_tenant(dsn_of_all, gateway, "globex") as (theirs, other):
        assert route_and_target(other, "everywhere") == f"everywhere@1 {LARGE}"
        theirs.make("everywhere", target(SMALL))
        wait_until(
            lambda: route_and_target(other, "everywhere") == f"everywhere@1 {SMALL}", "the project's own name answers"
        )
        assert theirs.listed().count("everywhere") == 1
        assert route_and_target(client, "everywhere") == f"everywhere@1 {LARGE}", "for others nothing has changed"
    reply = complete(client, "everywhere")
    request_id = reply.headers["x-request-id"]
    wait_until(lambda: made.billed(request_id), "the request is in the ledger")
    assert made.billed(request_id) == [(LARGE, "length")]
