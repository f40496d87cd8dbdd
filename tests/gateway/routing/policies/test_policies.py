"""Routes over two pools of fake engines: which target answers, which one follows, who is billed, and that explain is
right."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import httpx
import pytest

from gateway.domain.routing.policy.checks import read_document
from gateway.domain.routing.policy.facts import Facts, TargetFacts
from gateway.domain.routing.policy.walk import walk
from tests.gateway.live import LiveGateway, Tenant, make_tenant
from tests.gateway.routing.policies.routes import (
    BROKEN,
    DOWN,
    LARGE,
    SLOW,
    SMALL,
    Routes,
    another_tenant,
    body_of,
    complete,
    limit_one_at_a_time,
    target,
)
from tests.installation.waiting import wait_until
from tests.patience import PATIENCE_S


def test_a_pool_that_is_down_is_followed_and_one_attempt_is_billed(made: Routes, client: httpx.Client) -> None:
    route = made.make("fallback", {"fallback": {"nodes": [target(DOWN), target(LARGE)]}})
    for stream in (False, True):
        reply = complete(client, route, stream=stream)
        assert reply.status_code == 200, reply.text
        told = {name: reply.headers[f"x-lorikeet-{name}"] for name in ("route", "target", "attempts")}
        assert told == {"route": "fallback@1", "target": LARGE, "attempts": "2"}
        request_id = reply.headers["x-request-id"]
        wait_until(lambda request_id=request_id: made.billed(request_id), "the request is in the ledger")
        assert made.billed(request_id) == [(LARGE, "length")]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("first", "bound_ms"), [(BROKEN, None), (SLOW, 300)])
def test_a_pool_that_fails_or_is_too_slow_is_followed_and_costs_nothing(
    made: Routes, client: httpx.Client, first: str, bound_ms: int | None, stream: bool
) -> None:
    fallback: dict[str, Any] = {"nodes": [target(first), target(LARGE)]}
    if bound_ms is not None:
        fallback["first_token_ms"] = bound_ms
    route = made.make(f"after-{first}-{stream}".lower(), {"fallback": fallback})
    reply = complete(client, route, stream=stream)
    assert (reply.status_code, reply.headers.get("x-lorikeet-target")) == (200, LARGE), reply.text
    assert body_of(reply) == body_of(complete(client, LARGE, stream=stream))
    request_id = reply.headers["x-request-id"]
    wait_until(lambda: len(made.rows(request_id)) >= 2, "both attempts are in the ledger")
    assert made.billed(request_id) == [(LARGE, "length")]
    assert {(model, end) for model, end, _ in made.rows(request_id)} == {(first, "superseded"), (LARGE, "length")}


@pytest.mark.parametrize(
    ("first", "ends"), [(DOWN, {LARGE: "length"}), (BROKEN, {BROKEN: "superseded", LARGE: "length"})]
)
def test_a_request_is_listed_once_by_the_target_that_answered_with_every_attempt(
    made: Routes, client: httpx.Client, first: str, ends: dict[str, str]
) -> None:
    reply = complete(client, made.make(f"listed-{first}", {"fallback": {"nodes": [target(first), target(LARGE)]}}))
    request_id = reply.headers["x-request-id"]
    wait_until(lambda: len(made.rows(request_id)) == len(ends), "all attempts are in the ledger")
    row, attempts = made.listed_request(request_id)
    assert (row.model, row.finish_reason, row.completion_tokens) == (LARGE, "length", 4)
    assert {each.model: each.finish_reason for each in attempts} == ends


def test_metrics_tell_the_branches_attempts_and_fallbacks_of_a_route(
    made: Routes, gateway: LiveGateway, tenant: Tenant, client: httpx.Client
) -> None:
    cheapest = {"cheapest": {"nodes": [target(LARGE)]}}
    route = made.make("measured", {"fallback": {"nodes": [target(BROKEN), cheapest]}})
    assert complete(client, route).headers["x-lorikeet-target"] == LARGE
    assert complete(client, route, logit_bias={"999999": 1}).status_code == 400
    label, lines = f'route="{tenant.project_id}/{route}"', gateway.metrics().splitlines()
    counted = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if label in line}
    counted = {key: value for key, value in counted.items() if "_created" not in key}
    assert counted == {
        f'lorikeet_route_branches_total{{branch="nodes[0]",node="root.fallback",{label}}}': 2.0,
        f'lorikeet_route_branches_total{{branch="nodes[1]",node="root.fallback",{label}}}': 1.0,
        f'lorikeet_route_branches_total{{branch="nodes[0]",node="root.fallback.nodes[1].cheapest",{label}}}': 1.0,
        f'lorikeet_route_attempts_total{{outcome="failed",{label}}}': 1.0,
        f'lorikeet_route_attempts_total{{outcome="served",{label}}}': 1.0,
        f'lorikeet_route_attempts_total{{outcome="refused",{label}}}': 1.0,
        f'lorikeet_route_fallbacks_total{{error="failed",{label}}}': 1.0,
    }


@pytest.mark.parametrize("stream", [False, True])
def test_a_first_token_may_be_too_late_where_the_next_target_is_on_the_same_pool(
    made: Routes, client: httpx.Client, stream: bool
) -> None:
    fallback = {"nodes": [target(SLOW), target(SLOW)], "first_token_ms": 300}
    reply = complete(client, made.make(f"same-pool-{stream}".lower(), {"fallback": fallback}), max_tokens=1)
    assert (reply.status_code, reply.headers.get("x-lorikeet-attempts")) == (200, "2"), reply.text
    request_id = reply.headers["x-request-id"]
    wait_until(lambda: len(made.rows(request_id)) >= 2, "both attempts are in the ledger")
    assert {(model, end) for model, end, _ in made.rows(request_id)} == {(SLOW, "superseded"), (SLOW, "length")}
    assert made.billed(request_id) == [(SLOW, "length")]


@pytest.mark.parametrize(("first", "bound_ms"), [(DOWN, None), (BROKEN, None), (SLOW, 300)])
def test_what_a_followed_attempt_had_reserved_is_given_back(
    dsn_of_all: str, gateway: LiveGateway, client: httpx.Client, first: str, bound_ms: int | None
) -> None:
    """A request that is tried twice fits limits of one request at a time and of tokens for little more than one try."""
    limited = asyncio.run(make_tenant(dsn_of_all, f"limited-{first}", "pirate", "1"))
    asyncio.run(limit_one_at_a_time(dsn_of_all, limited))
    with httpx.Client(
        base_url=gateway.url, headers={"authorization": f"Bearer {limited.key}"}, timeout=PATIENCE_S
    ) as own:
        fallback: dict[str, Any] = {"nodes": [target(first), target(LARGE)]}
        if bound_ms is not None:
            fallback["first_token_ms"] = bound_ms
        route = Routes(dsn_of_all, limited, own).make("tried", {"fallback": fallback})
        for _ in range(2):
            reply = complete(own, route, max_tokens=400)
            assert (reply.status_code, reply.headers.get("x-lorikeet-attempts")) == (200, "2"), reply.text
            assert reply.headers["x-lorikeet-target"] == LARGE


def test_an_error_that_no_fallback_is_about_is_the_clients(made: Routes, client: httpx.Client) -> None:
    fallback = {"nodes": [target(BROKEN), target(LARGE)], "on": ["rate_limited"]}
    reply = complete(client, made.make("unlucky", {"fallback": fallback}))
    assert (reply.status_code, reply.json()["error"]["code"]) == (502, "backend_failed")


def test_a_run_draws_as_the_walk_of_the_same_request_does(made: Routes, client: httpx.Client) -> None:
    choices = [{"weight": 2, "node": target(SMALL)}, {"weight": 1, "node": target(LARGE)}]
    root = {"weighted": {"choices": choices}}
    route = made.make("drawn", root)
    document, route_id = read_document(json.dumps({"root": root}).encode()), made.route_id(route)
    for _ in range(20):
        reply = complete(client, route)
        request_id, known = reply.headers["x-request-id"], {SMALL: TargetFacts(), LARGE: TargetFacts()}
        plan = walk(document, Facts(route_id=route_id, request_id=request_id, targets=known))
        assert plan.steps[0].target == reply.headers["x-lorikeet-target"]


def test_the_answer_by_a_route_is_the_targets_own(made: Routes, client: httpx.Client) -> None:
    route = made.make("plain", target(f"{SMALL}:pirate"))
    by_route, own = complete(client, route), complete(client, f"{SMALL}:pirate")
    assert by_route.headers["x-lorikeet-adapter"] == "pirate@1"
    assert by_route.json()["choices"] == own.json()["choices"]
    first = made.make("first", {"fallback": {"nodes": [target(SMALL), target(LARGE)]}})
    for stream in (False, True):
        assert body_of(complete(client, first, stream=stream)) == body_of(complete(client, SMALL, stream=stream))


def test_a_prompt_that_is_too_long_for_one_model_goes_to_a_larger_one(made: Routes, client: httpx.Client) -> None:
    nodes = [target(SMALL), target(LARGE)]
    route = made.make("longer", {"fallback": {"nodes": nodes, "on": ["context_length"]}})
    limits = {model["id"]: model["max_model_len"] for model in client.get("/v1/models").json()["data"]}
    assert limits[SMALL] < limits[LARGE]
    long = [5] * (limits[SMALL] + 1)
    reply = complete(client, route, prompt=long)
    assert complete(client, SMALL, prompt=long).status_code == 400
    assert (reply.status_code, reply.headers.get("x-lorikeet-target")) == (200, LARGE), reply.text[:300]
    never = made.make("never", {"fallback": {"nodes": nodes, "on": ["failed"]}})
    assert complete(client, never, prompt=long).json()["error"]["code"] == "context_length_exceeded"


def test_a_clients_own_mistake_is_tried_once(made: Routes, client: httpx.Client) -> None:
    route = made.make("mistake", {"fallback": {"nodes": [target(SMALL), target(LARGE)]}})
    reply = complete(client, route, logit_bias={"999999": 1})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "logit_bias")


def test_conditions_read_the_request(made: Routes, client: httpx.Client) -> None:
    cases = [
        {"when": {"stream": True}, "node": target(LARGE)},
        {"when": {"prompt_tokens": {"min": 20}}, "node": target(LARGE)},
    ]
    route = made.make("conditions", {"conditional": {"cases": cases, "otherwise": target(SMALL)}})
    replies = [
        complete(client, route),
        complete(client, route, stream=True),
        complete(client, route, prompt="ab " * 40),
    ]
    assert [reply.headers["x-lorikeet-target"] for reply in replies] == [SMALL, LARGE, LARGE]
    cases = [{"when": {"metadata": {"plan": "paid"}, "tools": False}, "node": target(LARGE)}]
    route = made.make("paid", {"conditional": {"cases": cases, "otherwise": target(SMALL)}})
    for plan, wanted in (("paid", LARGE), ("free", SMALL)):
        body = {"model": route, "messages": [{"role": "user", "content": "abc"}], "max_tokens": 4}
        reply = client.post("/v1/chat/completions", json=body | {"metadata": {"plan": plan}})
        assert (reply.status_code, reply.headers.get("x-lorikeet-target")) == (200, wanted), reply.text


def test_weights_hold_and_users_stick(made: Routes, client: httpx.Client) -> None:
    choices = [{"weight": 1, "node": target(SMALL)}, {"weight": 1, "node": target(LARGE)}]
    free = made.make("weights", {"weighted": {"choices": choices}})
    counted = Counter(complete(client, free).headers["x-lorikeet-target"] for _ in range(60))
    assert set(counted) == {SMALL, LARGE} and min(counted.values()) > 10
    sticky = made.make("sticky", {"weighted": {"choices": choices, "sticky": "user"}})
    for user in ("ann", "bob", "eve"):
        assert len({complete(client, sticky, user=user).headers["x-lorikeet-target"] for _ in range(6)}) == 1


def test_the_fastest_is_the_one_that_was_measured_to_be(
    dsn_of_all: str, gateway: LiveGateway, client: httpx.Client
) -> None:
    with another_tenant(dsn_of_all, gateway, "hurried") as (made, own):
        route = made.make("fastest", {"fastest": {"nodes": [target(SLOW), target(LARGE)]}})
        told = [complete(own, route, max_tokens=1).headers["x-lorikeet-target"] for _ in range(4)]
    assert told == [SLOW, LARGE, LARGE, LARGE]  # an unmeasured target is tried once


@pytest.mark.parametrize(("first", "bound_ms"), [(BROKEN, None), (SLOW, 300)])
def test_a_model_that_fails_or_is_too_slow_is_not_the_fastest(
    dsn_of_all: str, gateway: LiveGateway, client: httpx.Client, first: str, bound_ms: int | None
) -> None:
    fallback: dict[str, Any] = {"nodes": [{"fastest": {"nodes": [target(first), target(LARGE)]}}, target(LARGE)]}
    if bound_ms is not None:
        fallback["first_token_ms"] = bound_ms
    with another_tenant(dsn_of_all, gateway, f"hurried-{first}") as (made, own):
        route = made.make("fastest", {"fallback": fallback})
        tried = [complete(own, route, max_tokens=1).headers["x-lorikeet-attempts"] for _ in range(3)]
    assert tried == ["2", "1", "1"]


def test_what_cannot_be_used_is_passed_over_and_nothing_else_is_not_found(made: Routes, client: httpx.Client) -> None:
    some = made.make("some", {"fallback": {"nodes": [target("nobody"), target(SMALL)]}})
    assert complete(client, some).headers["x-lorikeet-attempts"] == "1"
    asyncio.run(made._make("none", json.dumps({"root": target("nobody")})))
    wait_until(lambda: complete(client, "none").status_code == 404, "there is no model")
    assert complete(client, "none").json()["error"]["code"] == "model_not_found"
    made.make("looped", {"fallback": {"nodes": [target("some"), target(LARGE)]}})
    assert complete(client, "looped").headers["x-lorikeet-target"] == LARGE  # a route is no target


def test_a_route_is_tokenized_and_embedded_by_its_first_target(made: Routes, client: httpx.Client) -> None:
    route = made.make("whole", {"fallback": {"nodes": [target(SMALL), target(LARGE)]}})
    assert client.post("/tokenize", json={"model": route, "prompt": "abc"}).status_code == 200
    reply = client.post("/v1/embeddings", json={"model": route, "input": "abc"})
    assert reply.status_code == 200, reply.text
