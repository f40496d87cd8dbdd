"""Hedges: a late first token is asked of another replica as well; one of the two is billed, and few are tried."""

from __future__ import annotations

import time
from typing import Any

import httpx
import pytest

from tests.gateway.live import LiveGateway
from tests.gateway.routing.policies.routes import LARGE, PAIR, SLOW, Routes, another_tenant, complete, target
from tests.installation.waiting import wait_until

SLOW_S = 2.0
"""Seconds that the slow replica takes to its first token."""


def hedged_where_streamed(name: str) -> dict[str, Any]:
    """Return a policy that hedges only streamed requests; other requests only add to the hedges' budget."""
    hedge = {"hedge": {"node": target(name), "delay_ms": 200}}
    return {"conditional": {"cases": [{"when": {"stream": True}, "node": hedge}], "otherwise": target(LARGE)}}


def hedge_counts(gateway: LiveGateway, made: Routes, route: str) -> dict[str, float]:
    """Return the number of a route's second tries by their result."""
    label = f'route="{made.tenant.project_id}/{route}"'
    lines = [line for line in gateway.metrics().splitlines() if line.startswith("lorikeet_route_hedges_total")]
    return {line.split('result="')[1].split('"')[0]: float(line.split()[-1]) for line in lines if label in line}


@pytest.mark.parametrize("num_saved", [1, 0])
def test_a_late_request_is_answered_by_the_other_replica_as_far_as_the_budget_goes(
    dsn_of_all: str, gateway: LiveGateway, client: httpx.Client, num_saved: int
) -> None:
    with another_tenant(dsn_of_all, gateway, f"hedging-{num_saved}") as (made, own):
        route = made.make("hedged", hedged_where_streamed(PAIR))
        for _ in range(20 * num_saved):
            assert complete(own, route, max_tokens=1).headers["x-lorikeet-target"] == LARGE
        times_s, request_ids = [], []
        while not hedge_counts(gateway, made, route):  # until the slow replica was first
            started_s = time.monotonic()
            reply = complete(own, route, stream=True, prompt=f"ab {len(times_s)}", max_tokens=1)
            times_s.append(time.monotonic() - started_s)
            assert (reply.status_code, '"finish_reason":"length"' in reply.text) == (200, True), reply.text
            assert reply.headers["x-lorikeet-target"] == PAIR
            request_ids.append(reply.headers["x-request-id"])
        assert all(each < SLOW_S for each in times_s[:-1])
        if not num_saved:
            assert (hedge_counts(gateway, made, route), times_s[-1] >= SLOW_S * 0.9) == ({"refused": 1.0}, True)
            return
        assert (hedge_counts(gateway, made, route), 0.2 <= times_s[-1] < SLOW_S) == ({"second": 1.0}, True)
        wait_until(lambda: len(made.all_rows(request_ids[-1])) == 2, "both tries are in the ledger")
        rows = [
            (row["attempt"], row["finish_reason"], row["completion_tokens"]) for row in made.all_rows(request_ids[-1])
        ]
        rows = made.all_rows(request_ids[-1])
        ends = [(row["attempt"], row["finish_reason"], row["completion_tokens"]) for row in rows]
        assert ends == [(0, "superseded", 0), (4, "length", 1)]
        assert made.num_requests(request_ids[-1]) == 1
        listed, attempts = made.listed_request(request_ids[-1])
        assert (listed.finish_reason, len(attempts)) == ("length", 2)
        for each in request_ids[:-1]:
            assert [row["finish_reason"] for row in made.all_rows(each)] == ["length"]


def test_a_pool_with_one_replica_is_not_hedged(dsn_of_all: str, gateway: LiveGateway, client: httpx.Client) -> None:
    with another_tenant(dsn_of_all, gateway, "hedging-alone") as (made, own):
        route = made.make("hedged", hedged_where_streamed(SLOW))
        for _ in range(20):
            complete(own, route, max_tokens=1)
        reply = complete(own, route, stream=True, max_tokens=1)
        assert (reply.status_code, hedge_counts(gateway, made, route)) == (200, {})
        request_id = reply.headers["x-request-id"]
        wait_until(lambda: made.all_rows(request_id), "the request is in the ledger")
        assert len(made.all_rows(request_id)) == 1
