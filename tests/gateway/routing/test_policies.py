"""Routes over two pools of fake engines: which target answers, what follows what, who is billed, and that explain
tells the truth."""

from __future__ import annotations

import asyncio
import datetime
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest

from engine.config import model_digest
from gateway.db.ledger.request_list import RequestQuery, list_requests
from gateway.db.ledger.requests import AttemptRow, RequestRow, list_attempts
from gateway.db.limits.limits import set_limit
from gateway.db.routing import routes
from gateway.domain.limits.limit import Limit
from gateway.domain.routing.policy.document import read_document
from gateway.domain.routing.policy.facts import Facts, TargetFacts
from gateway.domain.routing.policy.walk import walk
from gateway.pools.first_pool import make_pool
from gateway.settings import Settings
from tests.gateway.live import FakeEngine, LiveGateway, Tenant, make_tenant
from tests.gateway.model_folder import make_model_folder
from tests.gateway.routing.recording_engine import RecordingEngine
from tests.installation.waiting import wait_until
from tests.patience import PATIENCE_S

SMALL, LARGE, DOWN, SLOW, BROKEN = "small", "large", "down", "slow", "broken"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {name: make_model_folder(tmp_path_factory.mktemp("models") / name) for name in (SMALL, LARGE)}
    config = json.loads((made[LARGE] / "config.json").read_text())
    larger = {"num_hidden_layers": 2, "hidden_size": 64, "max_position_embeddings": 4096}
    (made[LARGE] / "config.json").write_text(json.dumps(config | larger))
    return made


@pytest.fixture(scope="module")
def gateway(
    module_dsn: str, tmp_path_factory: pytest.TempPathFactory, folders: dict[str, Path]
) -> Iterator[LiveGateway]:
    """A gateway over a small and a large pool with an engine each, a pool whose engine never comes, one whose first
    token takes two seconds, and one that fails at every request."""
    settings = Settings(data_dir=tmp_path_factory.mktemp("data"), model=str(folders[SMALL]), model_name=SMALL)
    settings.run_dir.mkdir()
    endpoint = f"ipc://{settings.run_dir}/large.sock"
    engines = [FakeEngine(settings.engine.endpoint, folders[SMALL]), FakeEngine(endpoint, folders[LARGE])]
    odd = {name: f"ipc://{settings.run_dir}/{name}.sock" for name in (SLOW, BROKEN)}
    recording = {
        name: RecordingEngine(odd[name], folders[LARGE], tokens_per_s=0.5 if name == SLOW else 0) for name in odd
    }
    recording[BROKEN].break_on("")
    gateway = LiveGateway(settings, folders[SMALL], module_dsn)
    try:
        gateway.start()
        asyncio.run(add_pool(module_dsn, LARGE, folders[LARGE], endpoint))
        asyncio.run(add_pool(module_dsn, DOWN, folders[LARGE], f"ipc://{settings.run_dir}/down.sock"))
        for name, address in odd.items():
            asyncio.run(add_pool(module_dsn, name, folders[LARGE], address))
        yield gateway
    finally:
        gateway.stop()
        for each in recording.values():
            each.stop()
        for engine in engines:
            engine.kill()


async def add_pool(dsn: str, name: str, folder: Path, address: str) -> None:
    conn = await asyncpg.connect(dsn)
    try:
        async with conn.transaction():
            digest = model_digest(folder)
            assert await make_pool(conn, name, model=str(folder), folder=folder, base_digest=digest, address=address)
    finally:
        await conn.close()


@pytest.fixture(scope="module")
def tenant(module_dsn: str, gateway: LiveGateway) -> Tenant:
    return asyncio.run(make_tenant(module_dsn, "acme", "pirate", "1"))


@pytest.fixture(scope="module")
def client(gateway: LiveGateway, tenant: Tenant) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {tenant.key}"}
    with httpx.Client(base_url=gateway.url, headers=headers, timeout=PATIENCE_S) as client:
        for name in (SMALL, LARGE):
            wait_until(lambda name=name: complete(client, name).status_code == 200, f"the pool {name} answers")
        wait_until(lambda: complete(client, DOWN).status_code == 503, "the third pool is known")
        wait_until(lambda: complete(client, BROKEN).status_code == 502, "the broken pool fails")
        wait_until(lambda: complete(client, SLOW, max_tokens=1).status_code == 200, "the slow pool answers")
        yield client


def complete(client: httpx.Client, model: str, **fields: Any) -> httpx.Response:
    body = {"model": model, "prompt": "abc", "max_tokens": 4} | fields
    return client.post("/v1/completions", json=body)


def target(name: str) -> dict[str, Any]:
    return {"target": name}


class Routes:
    """Makes routes in the database, as the admin API does."""

    def __init__(self, dsn: str, tenant: Tenant, client: httpx.Client) -> None:
        self._dsn, self._tenant, self._client = dsn, tenant, client

    def make(self, name: str, root: dict[str, Any]) -> str:
        asyncio.run(self._make(name, json.dumps({"root": root})))
        wait_until(lambda: name in self.listed(), "the route is listed")
        return name

    def listed(self) -> list[str]:
        return [model["id"] for model in self._client.get("/v1/models").json()["data"]]

    async def _make(self, name: str, document: str) -> None:
        conn = await asyncpg.connect(self._dsn)
        try:
            async with conn.transaction():
                assert await routes.create_route(conn, self._tenant.project_id, name, document)
        finally:
            await conn.close()

    def billed(self, request_id: str) -> list[tuple[str, str]]:
        """Return the model and the end of each row of a request that counts."""
        return [(model, end) for model, end, num_tokens in self.rows(request_id) if num_tokens]

    def rows(self, request_id: str) -> list[tuple[str, str, int]]:
        """Return the model, the end and the tokens of each row of a request."""
        found = self._fetch(
            "SELECT model, finish_reason, prompt_tokens + completion_tokens FROM ledger WHERE request_id = $1",
            request_id,
        )
        return [(row[0], row[1], row[2]) for row in found]

    def listed_request(self, request_id: str) -> tuple[RequestRow, list[AttemptRow]]:
        """Return a request as the list of the project's requests has it, with its attempts."""

        async def find() -> tuple[RequestRow, list[AttemptRow]]:
            conn, now = await asyncpg.connect(self._dsn), datetime.datetime.now(datetime.UTC)
            try:
                organization_id = await conn.fetchval(
                    "SELECT organization_id FROM projects WHERE id = $1", self._tenant.project_id
                )
                hour = datetime.timedelta(hours=1)
                query = RequestQuery(
                    organization_id=organization_id,
                    start=now - hour,
                    end=now + hour,
                    after=None,
                    limit=100,
                    project_ids=[self._tenant.project_id],
                )
                rows = (await list_requests(conn, query, scan_limit=1_000)).rows
                (row,) = [each for each in rows if each.request_id == request_id]
                return row, await list_attempts(conn, organization_id, row)
            finally:
                await conn.close()

        return asyncio.run(find())

    def route_id(self, name: str) -> str:
        """Return the id of a route."""
        return str(self._fetch("SELECT route_id FROM model_aliases WHERE name = $1", name)[0][0])

    def _fetch(self, query: str, *values: str) -> list[Any]:
        async def fetch() -> list[Any]:
            conn = await asyncpg.connect(self._dsn)
            try:
                return list(await conn.fetch(query, *values))
            finally:
                await conn.close()

        return asyncio.run(fetch())


@pytest.fixture(scope="module")
def made(module_dsn: str, tenant: Tenant, client: httpx.Client) -> Routes:
    return Routes(module_dsn, tenant, client)


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


@contextmanager
def another_tenant(dsn: str, gateway: LiveGateway, name: str) -> Iterator[tuple[Routes, httpx.Client]]:
    """Make a tenant of which nothing was measured yet."""
    tenant = asyncio.run(make_tenant(dsn, name, "pirate", "1"))
    headers = {"authorization": f"Bearer {tenant.key}"}
    with httpx.Client(base_url=gateway.url, headers=headers, timeout=PATIENCE_S) as client:
        yield Routes(dsn, tenant, client), client


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
    module_dsn: str, gateway: LiveGateway, client: httpx.Client, first: str, bound_ms: int | None
) -> None:
    """One request at a time, and tokens for little more than one, are enough for a request that is tried twice."""
    limited = asyncio.run(make_tenant(module_dsn, f"limited-{first}", "pirate", "1"))
    asyncio.run(limit(module_dsn, limited))
    with httpx.Client(
        base_url=gateway.url, headers={"authorization": f"Bearer {limited.key}"}, timeout=PATIENCE_S
    ) as own:
        fallback: dict[str, Any] = {"nodes": [target(first), target(LARGE)]}
        if bound_ms is not None:
            fallback["first_token_ms"] = bound_ms
        route = Routes(module_dsn, limited, own).make("tried", {"fallback": fallback})
        for _ in range(2):
            reply = complete(own, route, max_tokens=400)
            assert (reply.status_code, reply.headers.get("x-lorikeet-attempts")) == (200, "2"), reply.text
            assert reply.headers["x-lorikeet-target"] == LARGE


async def limit(dsn: str, tenant: Tenant) -> None:
    conn = await asyncpg.connect(dsn)
    try:
        organization_id = await conn.fetchval("SELECT organization_id FROM projects WHERE id = $1", tenant.project_id)
        for unit, window, most in (("concurrency", "none", 1), ("tokens", "day", 1000)):
            wanted = Limit("", organization_id, tenant.project_id, None, None, unit, window, most, True)  # type: ignore[arg-type]
            await set_limit(conn, wanted)
    finally:
        await conn.close()


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


def body_of(reply: httpx.Response) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in reply.text.splitlines() if line and "[DONE]" not in line]
    choices = [choice for line in lines for choice in json.loads(line)["choices"]]
    return ["".join(choice["text"] for choice in choices), choices[-1]["finish_reason"]]


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
    module_dsn: str, gateway: LiveGateway, client: httpx.Client
) -> None:
    with another_tenant(module_dsn, gateway, "hurried") as (made, own):
        route = made.make("fastest", {"fastest": {"nodes": [target(SLOW), target(LARGE)]}})
        told = [complete(own, route, max_tokens=1).headers["x-lorikeet-target"] for _ in range(4)]
    assert told == [SLOW, LARGE, LARGE, LARGE]  # what was not measured is tried once


@pytest.mark.parametrize(("first", "bound_ms"), [(BROKEN, None), (SLOW, 300)])
def test_a_model_that_fails_or_is_too_slow_is_not_the_fastest(
    module_dsn: str, gateway: LiveGateway, client: httpx.Client, first: str, bound_ms: int | None
) -> None:
    fallback: dict[str, Any] = {"nodes": [{"fastest": {"nodes": [target(first), target(LARGE)]}}, target(LARGE)]}
    if bound_ms is not None:
        fallback["first_token_ms"] = bound_ms
    with another_tenant(module_dsn, gateway, f"hurried-{first}") as (made, own):
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
