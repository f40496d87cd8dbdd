"""A collector sees one trace over client, gateway and engine, with the attributes that the conventions require."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Any

import asyncpg
import httpx
import pytest

from tests.gateway.experiments.making import ArmOf, start_experiment
from tests.gateway.observability.tracing.collector import Received
from tests.gateway.observability.tracing.conftest import Site
from tests.gateway.routing.policies.routes import Routes, add_pool, target
from tests.installation.waiting import wait_until

NUMBERS = itertools.count(1)
CALLER = "00f067aa0ba902b7"
SECRETS = ("quincunx", "zoe@example.com")
CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
HTTP_REQUIRED = {"http.request.method", "url.path", "url.scheme", "http.route", "http.response.status_code"}
GEN_AI_REQUIRED = {"gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model"}


def new_trace() -> tuple[str, dict[str, str]]:
    """Return the id of a new trace, and the headers of a request that belongs to it."""
    trace_id = f"{0xABC << 64 | next(NUMBERS):032x}"
    return trace_id, {"traceparent": f"00-{trace_id}-{CALLER}-01"}


def chat(model: str = "tiny", **fields: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": SECRETS[0]}], "user": SECRETS[1]} | fields


def chain(spans: list[Received]) -> list[Received]:
    """Return the spans of a trace from the client's call down; each is the only child of the one before."""
    ordered, parent = [], CALLER
    while children := [each for each in spans if each.parent_id == parent]:
        (child,) = children
        ordered.append(child)
        parent = child.span_id
    assert len(ordered) == len(spans)
    return ordered


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_is_one_trace_over_client_gateway_and_engine(site: Site, stream: bool) -> None:
    trace_id, headers = new_trace()
    before_ns = time.time_ns()
    reply = site.client.post(
        CHAT, json=chat("tiny:pirate", max_tokens=7, temperature=0.5, seed=3, n=2, stream=stream), headers=headers
    )
    assert reply.status_code == 200, reply.text
    server, call, engine = chain(site.collector.trace(trace_id, 3))
    assert (server.name, server.kind, server.service) == (f"POST {CHAT}", "server", "lorikeet-gateway")
    assert server.attributes.keys() >= HTTP_REQUIRED
    assert server.attributes["url.path"] == server.attributes["http.route"] == CHAT
    assert server.attributes["http.response.status_code"] == 200
    assert server.attributes["lorikeet.request.id"] == reply.headers["x-request-id"]
    assert server.attributes["lorikeet.tenant"] == site.tenant.project_id
    assert "error.type" not in server.attributes
    assert (call.name, call.kind, call.service) == ("chat tiny:pirate", "client", "lorikeet-gateway")
    assert call.attributes.keys() >= GEN_AI_REQUIRED
    assert call.attributes["gen_ai.operation.name"] == "chat"
    assert call.attributes["gen_ai.provider.name"] == "lorikeet"
    assert call.attributes["gen_ai.response.model"] == "tiny:pirate@1"
    asked = {"max_tokens": 7, "temperature": 0.5, "seed": 3, "choice.count": 2, "stream": stream}
    assert {name: call.attributes[f"gen_ai.request.{name}"] for name in asked} == asked
    assert call.attributes["gen_ai.usage.output_tokens"] == 14
    assert call.attributes["gen_ai.usage.input_tokens"] > 0
    assert call.attributes["gen_ai.response.finish_reasons"] == ["length", "length"]
    assert (engine.name, engine.kind, engine.service) == ("engine tiny", "server", "lorikeet-engine")
    assert engine.attributes["lorikeet.engine.timed_by"] == "engine"
    assert engine.attributes["lorikeet.engine.decode_ms"] > 0
    assert engine.events.keys() == {"prefill", "first_token"}
    # The engine and the gateway are on one machine here, so that their clocks agree.
    assert before_ns <= server.start_ns <= call.start_ns <= engine.start_ns
    assert engine.start_ns <= engine.event_times["prefill"] <= engine.event_times["first_token"] <= engine.end_ns
    assert engine.end_ns <= call.end_ns <= server.end_ns <= time.time_ns()
    first_s = call.attributes["gen_ai.response.time_to_first_chunk"]
    assert 0 < first_s <= (call.end_ns - call.start_ns) / 1e9
    assert not any(each.is_error for each in (server, call, engine))
    assert site.collector.headers[-1]["x-key"] == "a secret"


@pytest.mark.parametrize(
    ("path", "body", "operation"),
    [
        (COMPLETIONS, {"prompt": ["a quincunx", "b"], "max_tokens": 3}, "text_completion"),
        (EMBEDDINGS, {"input": ["a quincunx", "b"]}, "embeddings"),
    ],
)
def test_each_prompt_of_a_request_has_its_span_at_the_engine(
    site: Site, path: str, body: dict[str, Any], operation: str
) -> None:
    trace_id, headers = new_trace()
    reply = site.client.post(path, json={"model": "tiny"} | body, headers=headers)
    assert reply.status_code == 200, reply.text
    spans = site.collector.trace(trace_id, 4)
    (call,) = [each for each in spans if each.kind == "client"]
    engines = [each for each in spans if each.service == "lorikeet-engine"]
    assert [each.parent_id for each in engines] == [call.span_id] * 2
    assert (call.name, call.attributes["gen_ai.operation.name"]) == (f"{operation} tiny", operation)
    assert call.attributes["gen_ai.usage.input_tokens"] == reply.json()["usage"]["prompt_tokens"]
    assert call.attributes.get("gen_ai.usage.output_tokens", 0) == reply.json()["usage"].get("completion_tokens", 0)


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"model": "tiny:quincunx-that-is-not"}, 404, "model_not_found"),
        ({"max_tokens": -1}, 400, "invalid_value"),
        ({"max_tokens": 10**6}, 400, "context_length_exceeded"),
    ],
)
def test_a_refusal_has_its_code_and_calls_no_model(site: Site, fields: dict[str, Any], status: int, code: str) -> None:
    trace_id, headers = new_trace()
    reply = site.client.post(CHAT, json=chat() | fields, headers=headers)
    assert (reply.status_code, reply.json()["error"]["code"]) == (status, code)
    (server,) = chain(site.collector.trace(trace_id, 1))
    assert server.attributes["http.response.status_code"] == status
    assert server.attributes["error.type"] == code
    assert not server.is_error, "the caller's own errors are none of the server"


def test_a_wrong_key_is_a_span_of_nobody(site: Site) -> None:
    trace_id, headers = new_trace()
    assert httpx.post(site.gateway.url + CHAT, json=chat(), headers=headers).status_code == 401
    (server,) = chain(site.collector.trace(trace_id, 1))
    assert server.attributes["error.type"] == "invalid_api_key"
    assert "lorikeet.tenant" not in server.attributes


def test_a_client_that_leaves_ends_its_spans(site: Site) -> None:
    trace_id, headers = new_trace()
    with site.client.stream("POST", CHAT, json=chat(max_tokens=100, stream=True), headers=headers) as reply:
        next(reply.iter_lines())
    server, call, engine = chain(site.collector.trace(trace_id, 3))
    assert (server.attributes["error.type"], server.is_error) == ("client_disconnected", False)
    assert server.attributes["http.response.status_code"] == 200
    for span in (call, engine):
        assert (span.attributes["error.type"], span.is_error) == ("cancelled", True)
    assert call.attributes.keys() >= GEN_AI_REQUIRED
    assert "gen_ai.usage.output_tokens" not in call.attributes, "the ledger alone knows what an aborted reply took"
    assert engine.attributes["lorikeet.engine.timed_by"] == "gateway"


def test_each_attempt_of_a_route_is_a_call(site: Site) -> None:
    settings = site.gateway.settings
    folder = settings.data_dir / "model"
    asyncio.run(add_pool(site.dsn, "down", folder, f"ipc://{settings.run_dir}/down.sock"))
    routes = Routes(site.dsn, site.tenant, site.client)
    routes.make("either", {"fallback": {"nodes": [target("down"), target("tiny")]}})
    wait_until(lambda: site.client.post(CHAT, json=chat("down")).status_code == 503, "the pool is known")
    trace_id, headers = new_trace()
    reply = site.client.post(CHAT, json=chat("either", max_tokens=2), headers=headers)
    assert reply.headers["x-lorikeet-attempts"] == "2", reply.text
    server, first, second, engine = site.collector.trace(trace_id, 4)
    assert (server.attributes["lorikeet.route"], server.attributes["lorikeet.route.target"]) == ("either@1", "tiny")
    assert server.attributes["lorikeet.route.attempts"] == "2"
    assert [(each.name, each.parent_id) for each in (first, second)] == [
        ("chat down", server.span_id),
        ("chat tiny", server.span_id),
    ]
    assert (first.attributes["error.type"], first.is_error) == ("engine_unavailable", True)
    assert "error.type" not in second.attributes
    assert engine.parent_id == second.span_id


def test_the_arm_of_an_experiment_and_a_vote_have_their_events(site: Site) -> None:
    async def start() -> None:
        conn = await asyncpg.connect(site.dsn)
        try:
            await start_experiment(conn, site.tenant.project_id, (ArmOf("control"), ArmOf("warm", "pirate")))
        finally:
            await conn.close()

    asyncio.run(start())
    wait_until(lambda: site.client.post(CHAT, json=chat("support-bot")).status_code == 200, "the experiment is known")
    trace_id, headers = new_trace()
    reply = site.client.post(CHAT, json=chat("support-bot", max_tokens=2), headers=headers)
    server, call, _ = chain(site.collector.trace(trace_id, 3))
    event = server.events["feature_flag.evaluation"]
    assert (event["feature_flag.key"], event["feature_flag.result.reason"]) == ("support-tone", "split")
    arm = event["feature_flag.result.variant"]
    assert f'arm="{arm}"' in reply.headers["x-lorikeet-experiment"]
    assert call.attributes["gen_ai.request.model"] == {"control": "tiny", "warm": "tiny:pirate"}[arm]

    trace_id, headers = new_trace()
    vote = {"completion_id": reply.json()["id"], "metric": "thumbs_up", "value": True, "comment": SECRETS[0]}
    asyncio.run(put_metric(site))
    wait_until(lambda: site.client.post("/v1/feedback", json=vote, headers=headers).status_code == 200)
    spans = wait_until(lambda: [s for s in site.collector.spans if s.trace_id == trace_id and s.events])
    assert spans[0].events["gen_ai.evaluation.result"] == {
        "gen_ai.evaluation.name": "thumbs_up",
        "gen_ai.evaluation.score.value": 1.0,
        "gen_ai.response.id": reply.json()["id"],
    }


async def put_metric(site: Site) -> None:
    conn = await asyncpg.connect(site.dsn)
    try:
        await conn.execute(
            "INSERT INTO feedback_metrics (project_id, name, type, goal, kind) "
            "VALUES ($1, 'thumbs_up', 'boolean', 'increase', 'mean')",
            site.tenant.project_id,
        )
    finally:
        await conn.close()


@pytest.mark.parametrize(
    "given",
    [
        [],
        [("traceparent", f"00-{'0' * 32}-{CALLER}-01")],
        [("traceparent", "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01")],
        [("traceparent", f"00-{'a' * 32}-{CALLER}-01"), ("traceparent", f"00-{'b' * 32}-{CALLER}-01")],
    ],
)
def test_a_malformed_header_begins_a_trace_of_its_own(site: Site, given: list[tuple[str, str]]) -> None:
    reply = site.client.post(CHAT, json=chat(max_tokens=1), headers=given)  # type: ignore[arg-type]
    request_id = reply.headers["x-request-id"]
    server = wait_until(
        lambda: next(
            (
                each
                for each in site.collector.spans
                if "http.route" in each.attributes and each.attributes["lorikeet.request.id"] == request_id
            ),
            None,
        )
    )
    assert server.parent_id == ""
    assert all(server.trace_id not in value for _, value in given)


def test_a_caller_that_is_not_traced_decides_for_the_gateway(site: Site) -> None:
    trace_id = f"{0xDEF << 64 | next(NUMBERS):032x}"
    headers = {"traceparent": f"00-{trace_id}-{CALLER}-00"}
    assert site.client.post(CHAT, json=chat(max_tokens=1), headers=headers).status_code == 200
    last, later = new_trace()
    site.client.post(CHAT, json=chat(max_tokens=1), headers=later)
    site.collector.trace(last, 3)
    assert all(each.trace_id != trace_id for each in site.collector.spans)


def test_administration_and_probes_have_no_spans(site: Site) -> None:
    trace_id, headers = new_trace()
    operator = {"authorization": f"Bearer {site.operator_key}"}
    assert site.client.get("/health/ready", headers=headers).status_code == 200
    assert site.client.get("/v1/organization/projects", headers=headers | operator).status_code == 200
    last, later = new_trace()
    site.client.post(CHAT, json=chat(max_tokens=1), headers=later)
    site.collector.trace(last, 3)
    assert all(each.trace_id != trace_id for each in site.collector.spans)


def test_the_record_of_a_request_has_the_id_of_its_trace(site: Site) -> None:
    trace_id, headers = new_trace()
    reply = site.client.post(CHAT, json=chat(max_tokens=1), headers=headers)
    operator = {"authorization": f"Bearer {site.operator_key}"}
    path = f"/v1/organization/requests/{reply.headers['x-request-id']}"
    record = wait_until(lambda: (found := site.client.get(path, headers=operator)).status_code == 200 and found)
    assert isinstance(record, httpx.Response)
    assert record.json()["trace_id"] == trace_id


def test_prompts_and_answers_and_people_are_in_no_span(site: Site) -> None:
    trace_id, headers = new_trace()
    reply = site.client.post(CHAT, json=chat(max_tokens=20, stop=["quincunx-stop"]), headers=headers)
    answer = reply.json()["choices"][0]["message"]["content"]
    assert len(answer) > 4
    site.collector.trace(trace_id, 3)
    sent = b"".join(site.collector.bodies)
    for secret in (*SECRETS, "quincunx-stop", answer, site.tenant.key):
        assert secret.encode() not in sent


def test_spans_are_counted(site: Site) -> None:
    trace_id, headers = new_trace()
    site.client.post(CHAT, json=chat(max_tokens=1), headers=headers)
    site.collector.trace(trace_id, 3)

    def num_sent() -> float:
        line = next(each for each in site.gateway.metrics().splitlines() if 'trace_spans_total{outcome="sent"}' in each)
        return float(line.split()[-1])

    wait_until(lambda: num_sent() >= len(site.collector.spans), lambda: f"{num_sent()} of {len(site.collector.spans)}")
    assert 'outcome="no_room"} 0.0' in site.gateway.metrics()
