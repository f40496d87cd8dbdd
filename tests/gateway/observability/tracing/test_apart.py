"""Work that runs apart from any request is traced: lines of batches, background responses, copies for shadow arms."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import asyncpg

from tests.gateway.experiments.making import ArmOf, start_experiment
from tests.gateway.observability.tracing.collector import Received
from tests.gateway.observability.tracing.conftest import Site
from tests.gateway.observability.tracing.test_traces import CHAT, GEN_AI_REQUIRED, chat, new_trace
from tests.installation.databases import execute
from tests.installation.waiting import wait_until

RESPONSES = "/v1/responses"


def spans_below(spans: list[Received], parent: Received) -> list[Received]:
    return [span for span in spans if span.parent_id == parent.span_id]


def span_named(spans: list[Received], name: str) -> Received:
    (found,) = [span for span in spans if span.name == name]
    return found


def check_call(spans: list[Received], first: Received, model: str) -> None:
    """Check that the first span has a model call as its child, with an engine's attempt as the child of that."""
    (call,) = spans_below(spans, first)
    assert (call.name, call.kind) == (f"chat {model}", "client")
    assert call.attributes.keys() >= GEN_AI_REQUIRED and call.attributes["gen_ai.usage.output_tokens"] > 0
    (engine,) = spans_below(spans, call)
    assert (engine.name, engine.service) == ("engine tiny", "lorikeet-engine")


def test_a_background_response_goes_on_with_the_trace_of_its_request(site: Site) -> None:
    asyncio.run(execute(site.dsn, f"UPDATE projects SET store_days = 1 WHERE id = '{site.tenant.project_id}'"))
    trace_id, headers = new_trace()
    body = {"model": "tiny", "input": "abc", "background": True, "max_output_tokens": 3}
    made = wait_until(
        lambda: (reply := site.client.post(RESPONSES, json=body, headers=headers)).status_code == 200 and reply.json(),
        "responses may not be stored yet",
    )
    assert isinstance(made, dict)
    spans = wait_until(lambda: _whole(site, trace_id, "background response"), "its spans do not come")
    ran = span_named(spans, "background response")
    (queued,) = [span for span in spans if span.span_id == ran.parent_id]
    assert (queued.name, queued.kind, ran.kind) == (f"POST {RESPONSES}", "server", "internal")
    assert ran.attributes["gen_ai.response.id"] == made["id"]
    assert ran.attributes["lorikeet.tenant"] == site.tenant.project_id
    assert ran.attributes["lorikeet.outcome"] == "incomplete" and not ran.is_error
    check_call(spans, ran, "tiny")


def test_a_line_of_a_batch_has_a_trace_of_its_own(site: Site) -> None:
    lines = [
        {"custom_id": "good", "method": "POST", "url": CHAT, "body": chat("tiny:pirate", max_tokens=3)},
        {"custom_id": "wrong", "method": "POST", "url": CHAT, "body": chat("tiny", max_tokens=10**6)},
    ]
    content = "".join(f"{json.dumps(line)}\n" for line in lines)
    file = site.client.post("/v1/files", files={"file": ("in.jsonl", content)}, data={"purpose": "batch"}).json()
    wanted = {"input_file_id": file["id"], "endpoint": CHAT, "completion_window": "24h"}
    batch = site.client.post("/v1/batches", json=wanted).json()

    def both() -> list[Received] | None:
        found = [span for span in site.collector.spans if span.attributes.get("lorikeet.batch.id") == batch["id"]]
        return found if len(found) == len(lines) else None

    first = wait_until(both, lambda: str(site.client.get(f"/v1/batches/{batch['id']}").json()))
    assert {(span.name, span.kind, span.parent_id) for span in first} == {("batch line", "internal", "")}
    assert len({span.trace_id for span in first}) == len(lines)
    (wrong,) = [span for span in first if "error.type" in span.attributes]
    assert (wrong.attributes["error.type"], wrong.is_error) == ("context_length_exceeded", False)
    (good,) = [span for span in first if span is not wrong]
    spans = wait_until(lambda: _spans_of_trace(site, good.trace_id, 3), "the call does not come")
    check_call(spans, good, "tiny:pirate")


def test_a_copy_for_a_shadow_arm_is_below_the_request_that_it_copies(site: Site) -> None:
    async def start() -> None:
        conn = await asyncpg.connect(site.dsn)
        try:
            names: dict[str, Any] = {"name": "dark", "model": "dark-bot", "layer": "dark"}
            await start_experiment(
                conn, site.tenant.project_id, (ArmOf("control"),), shadow=ArmOf("dark", "pirate"), **names
            )
        finally:
            await conn.close()

    asyncio.run(start())
    wait_until(lambda: site.client.post(CHAT, json=chat("dark-bot")).status_code == 200, "the experiment is known")
    trace_id, headers = new_trace()
    reply = site.client.post(CHAT, json=chat("dark-bot", max_tokens=2), headers=headers)
    spans = wait_until(lambda: _whole(site, trace_id, "shadow"), "the copy's spans do not come")
    server, shadow = span_named(spans, f"POST {CHAT}"), span_named(spans, "shadow")
    assert (shadow.kind, shadow.parent_id) == ("internal", server.span_id)
    assert shadow.attributes["lorikeet.request.id"].startswith(reply.headers["x-request-id"])
    assert shadow.attributes["lorikeet.outcome"] == "answered"
    assert shadow.events["feature_flag.evaluation"]["feature_flag.result.variant"] == "dark"
    check_call(spans, shadow, "tiny:pirate")
    assert shadow.start_ns >= server.end_ns, "no copy begins before the reply is over"


def _spans_of_trace(site: Site, trace_id: str, num_spans: int) -> list[Received] | None:
    found = [span for span in site.collector.spans if span.trace_id == trace_id]
    return found if len(found) >= num_spans else None


def _whole(site: Site, trace_id: str, name: str) -> list[Received] | None:
    """Return the spans of a trace once it is complete: a span of this name, the last to end, is there
    with its parent.
    """
    found = [span for span in site.collector.spans if span.trace_id == trace_id]
    ids = {span.span_id for span in found}
    is_whole = any(span.name == name and span.parent_id in ids for span in found)
    return found if is_whole else None
