"""Further rounds of a fallback: after a wait, and within the budget of the route."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import httpx

from gateway.domain.routing.policy.walk import FIRST_WAIT_MS
from gateway.domain.routing.retry_budget import FLOOR_PER_S, SHARE
from tests.gateway.live import LiveGateway
from tests.gateway.routing.policies.routes import (
    BROKEN,
    DOWN,
    Routes,
    another_tenant,
    complete,
    limit_one_at_a_time,
    target,
)
from tests.installation.waiting import wait_until


def retries(gateway: LiveGateway, made: Routes, route: str) -> dict[str, float]:
    """Return the number of a route's further rounds by their result."""
    label = f'route="{made.tenant.project_id}/{route}"'
    lines = [line for line in gateway.metrics().splitlines() if line.startswith("lorikeet_route_retries_total")]
    return {line.split('result="')[1].split('"')[0]: float(line.split()[-1]) for line in lines if label in line}


def test_all_branches_are_tried_again_after_a_wait(made: Routes, gateway: LiveGateway, client: httpx.Client) -> None:
    route = made.make("rounds", {"fallback": {"nodes": [target(DOWN), target(BROKEN)], "rounds": 2}})
    started_s = time.monotonic()
    reply = complete(client, route)
    assert (reply.status_code, reply.json()["error"]["code"]) == (502, "backend_failed")
    assert time.monotonic() - started_s >= FIRST_WAIT_MS / 2 / 1e3
    label = f'route="{made.tenant.project_id}/{route}"'
    tried = {
        line.split('outcome="')[1].split('"')[0]: float(line.split()[-1])
        for line in gateway.metrics().splitlines()
        if line.startswith("lorikeet_route_attempts_total") and label in line
    }
    assert tried == {"unavailable": 2.0, "failed": 1.0, "served": 1.0}, "the last failure is the reply"
    assert retries(gateway, made, route) == {"allowed": 1.0}


def test_an_outage_is_not_multiplied(dsn_of_all: str, gateway: LiveGateway, client: httpx.Client) -> None:
    num_requests = 100
    with another_tenant(dsn_of_all, gateway, "outage") as (made, own):
        route = made.make("outage", {"fallback": {"nodes": [target(DOWN)], "rounds": 4}})
        started_s = time.monotonic()
        with ThreadPoolExecutor(8) as threads:
            replies = list(threads.map(lambda _: complete(own, route).status_code, range(num_requests)))
        elapsed_s = time.monotonic() - started_s
        assert replies == [503] * num_requests
        counts = retries(gateway, made, route)
        assert 0 < counts["allowed"] <= SHARE * num_requests + FLOOR_PER_S * (elapsed_s + 1)
        # A request ends with a round that is refused, or after its three further ones.
        assert counts.get("refused", 0) + counts["allowed"] / 3 >= num_requests


def test_a_failure_that_no_round_follows_is_the_requests_end(
    dsn_of_all: str, gateway: LiveGateway, client: httpx.Client
) -> None:
    num_requests = 60
    with another_tenant(dsn_of_all, gateway, "failing") as (made, own):
        route = made.make("failing", {"fallback": {"nodes": [target(BROKEN)], "rounds": 2}})
        with ThreadPoolExecutor(8) as threads:
            replies = [each.status_code for each in threads.map(lambda _: complete(own, route), range(num_requests))]
        assert replies == [502] * num_requests
        counts = retries(gateway, made, route)
        assert counts.get("refused", 0) + counts.get("allowed", 0) == num_requests
        wait_until(lambda: made.num_requests_of_tenant() == num_requests, "each request is in the ledger once")
        ends = [end for _, end in made.ends_of_tenant()]
        assert ends.count("error") == num_requests
        assert ends.count("superseded") == counts.get("allowed", 0)


def test_a_request_that_waits_for_a_round_holds_no_place(
    dsn_of_all: str, gateway: LiveGateway, client: httpx.Client
) -> None:
    with another_tenant(dsn_of_all, gateway, "waiting") as (made, own):
        asyncio.run(limit_one_at_a_time(dsn_of_all, made.tenant))
        route = made.make("waiting", {"fallback": {"nodes": [target(BROKEN)], "rounds": 2}})
        with ThreadPoolExecutor(3) as threads:
            codes = {each.json()["error"]["code"] for each in threads.map(lambda _: complete(own, route), range(3))}
        assert codes == {"backend_failed"}
