"""Copies of a route's requests run after the reply, unseen, at the expense of the project that pays for them."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from tests.gateway.live import LiveGateway, make_tenant
from tests.gateway.routing.policies.routes import BROKEN, LARGE, SMALL, Routes, body_of, complete, target
from tests.installation.waiting import wait_until


@pytest.mark.parametrize("stream", [False, True])
def test_a_copy_is_billed_to_the_one_who_sends_the_request_and_changes_nothing_of_the_reply(
    made: Routes, client: httpx.Client, stream: bool
) -> None:
    route = made.make(f"copied-{stream}".lower(), {"shadow": {"node": target(SMALL), "target": LARGE}})
    reply = complete(client, route, stream=stream)
    assert (reply.status_code, reply.headers["x-lorikeet-target"]) == (200, SMALL), reply.text
    assert body_of(reply) == body_of(complete(client, SMALL, stream=stream))
    copy_id = reply.headers["x-request-id"] + "_shadow_0"
    wait_until(lambda: made.all_rows(copy_id), "the copy is in the ledger")
    (row,) = made.all_rows(copy_id)
    assert (row["model"], row["project_id"], row["service_tier"]) == (LARGE, made.tenant.project_id, "shadow")
    assert row["completion_tokens"] == 4


def test_another_project_may_pay_for_copies(
    dsn_of_all: str, gateway: LiveGateway, made: Routes, client: httpx.Client
) -> None:
    payer = asyncio.run(make_tenant(dsn_of_all, "payer", "pirate", "1"))
    shadow = {"node": target(SMALL), "target": f"{LARGE}", "payer": payer.project_id}
    reply = complete(client, made.make("paid-by-others", {"shadow": shadow}))
    request_id = reply.headers["x-request-id"]
    wait_until(lambda: made.all_rows(f"{request_id}_shadow_0"), "the copy is in the ledger")
    assert [row["project_id"] for row in made.all_rows(f"{request_id}_shadow_0")] == [payer.project_id]
    wait_until(lambda: made.all_rows(request_id), "the request is in the ledger")
    assert [row["project_id"] for row in made.all_rows(request_id)] == [made.tenant.project_id]


def test_a_branch_that_does_not_answer_is_not_copied(made: Routes, client: httpx.Client) -> None:
    copied = {"shadow": {"node": target(BROKEN), "target": SMALL}}
    also = {"shadow": {"node": {"shadow": {"node": target(LARGE), "target": SMALL}}, "target": LARGE}}
    reply = complete(client, made.make("copied-later", {"fallback": {"nodes": [copied, also]}}))
    assert reply.headers["x-lorikeet-target"] == LARGE
    request_id = reply.headers["x-request-id"]
    for number, model in enumerate((LARGE, SMALL)):
        copy_id = f"{request_id}_shadow_{number}"
        wait_until(lambda copy_id=copy_id: made.all_rows(copy_id), "the copy is in the ledger")
        assert [row["model"] for row in made.all_rows(copy_id)] == [model]
    assert made.all_rows(f"{request_id}_shadow_2") == []
