"""A request that its engine refuses is the client's mistake, and in no list, sum, metric or alert an engine's error."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.gateway.conftest import House
from tests.installation.waiting import wait_until
from tests.patience import PATIENCE_S

WRONG: dict[str, Any] = {"unsupported": 1}
"""A schema that the engine refuses."""

SCHEMA = {"name": "a", "schema": WRONG}
MESSAGES = [{"role": "user", "content": "hello"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES, "response_format": {"type": "json_schema", "json_schema": SCHEMA}},
    "/v1/completions": {"prompt": "hello", "structured_outputs": {"json": WRONG}},
    "/v1/responses": {"input": "hello", "text": {"format": {"type": "json_schema", **SCHEMA}}},
}


@pytest.fixture
def operator(house: House) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {house.operator_key}"}
    with httpx.Client(base_url=f"{house.url}/v1/organization", headers=headers, timeout=PATIENCE_S) as client:
        yield client


def cut_streams(house: House) -> list[str]:
    return [line for line in house.gateway.metrics().splitlines() if line.startswith("lorikeet_streams_cut_total")]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", BODIES)
def test_a_request_refused_by_its_engine_is_listed_and_counted_as_refused(
    house: House, operator: httpx.Client, path: str, stream: bool
) -> None:
    cut = cut_streams(house)
    reply = httpx.post(
        house.url + path,
        json=BODIES[path] | {"model": "tiny", "stream": stream},
        headers={"authorization": f"Bearer {house.acme.key}"},
        timeout=PATIENCE_S,
    )
    assert reply.status_code == 400 or (stream and "unsupported" in reply.text), reply.text
    request_id = reply.headers["x-request-id"]
    wait_until(lambda: operator.get(f"/requests/{request_id}").status_code == 200)
    shown = operator.get(f"/requests/{request_id}").json()
    assert (shown["status"], shown["finish_reason"]) == ("refused", "refused")
    assert (shown["input_tokens"], shown["output_tokens"], shown["cost_nanos"]) == (0, 0, 0)

    def ids(reason: str) -> set[str]:
        found = operator.get("/requests", params={"finish_reasons[]": reason, "limit": 100}).json()["data"]
        return {each["id"] for each in found}

    wait_until(lambda: request_id in ids("refused"))
    assert request_id not in ids("error")
    assert cut_streams(house) == cut, "no alert counts what the client did wrong"
    counts = 'vllm:request_success_total{finished_reason="refused",model_name="tiny"}'
    assert counts in house.gateway.metrics()


def test_traffic_tells_refused_requests_from_failed_ones(house: House, operator: httpx.Client) -> None:
    project = operator.post("/projects", json={"name": "refused by the engine"}).json()["id"]
    key = operator.post(f"/projects/{project}/api_keys", json={"name": "its key"}).json()["value"]
    now = int(time.time())
    window = {"start_time": now - 86_400, "end_time": now + 86_400, "bucket_width": "1d"}

    def counts() -> tuple[int, int, int]:
        buckets = operator.get(f"/projects/{project}/traffic", params=window).json()["data"]
        results = [result for bucket in buckets for result in bucket["results"]]
        requests, refused, errors = (
            sum(result[name] for result in results) for name in ("num_requests", "num_refused", "num_errors")
        )
        return requests, refused, errors

    reply = httpx.post(
        f"{house.url}/v1/completions",
        json=BODIES["/v1/completions"] | {"model": "tiny"},
        headers={"authorization": f"Bearer {key}"},
        timeout=PATIENCE_S,
    )
    assert reply.status_code == 400
    wait_until(lambda: counts()[0] > 0)
    assert counts() == (1, 1, 0)
    assert operator.post(f"/projects/{project}/archive").status_code == 200
