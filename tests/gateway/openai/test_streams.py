"""Streams byte for byte, clients that leave, engines that die, and what the ledger records of each."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import Iterator

import asyncpg
import httpx
import pytest

from gateway.metering.copier import LINGER_S
from tests.gateway.conftest import House
from tests.gateway.live import FakeEngine, LiveGateway, Tenant, make_tenant
from tests.gateway.model_folder import make_model_folder
from tests.installation.live_gateway import running_gateways
from tests.installation.waiting import until, wait_until
from tests.patience import PATIENCE_S


def raw_post(port: int, key: str, path: str, body: dict[str, object]) -> socket.socket:
    content = json.dumps(body).encode()
    sock = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
    sock.sendall(
        f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n"
        f"content-length: {len(content)}\r\nconnection: close\r\n\r\n".encode()
        + content
    )
    return sock


def read_all(sock: socket.socket) -> bytes:
    data = b""
    while piece := sock.recv(65536):
        data += piece
    return data


def unchunk(body: bytes) -> bytes:
    data = b""
    while True:
        size, _, body = body.partition(b"\r\n")
        if int(size, 16) == 0:
            return data
        data, body = data + body[: int(size, 16)], body[int(size, 16) + 2 :]


async def usage_rows(dsn: str, project_id: str, finish_reason: str, at_least: int = 1) -> list[asyncpg.Record]:
    """Return the ledger's rows of requests that ended for this reason.

    Rows are written after the reply: wait until there are `at_least`; with 0, until all rows of ended requests are
    written.
    """
    if not at_least:
        await asyncio.sleep(3 * LINGER_S)  # the ledger writes in groups, this far apart
    conn = await asyncpg.connect(dsn)
    try:

        async def rows() -> list[asyncpg.Record]:
            return await conn.fetch(
                "SELECT * FROM usage_attempts WHERE project_id = $1 AND finish_reason = $2 ORDER BY created_at",
                project_id,
                finish_reason,
            )

        async def are_there() -> bool:
            return len(await rows()) >= at_least

        await until(are_there, f"fewer than {at_least} rows came")
        return await rows()
    finally:
        await conn.close()


def test_a_stream_has_exactly_these_bytes(house: House):
    body = {
        "model": "tiny",
        "prompt": "abc",
        "max_tokens": 2,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    with raw_post(house.gateway.port, house.acme.key, "/v1/completions", body) as sock:
        head, _, rest = read_all(sock).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"content-type: text/event-stream; charset=utf-8" in head
    assert re.search(rb"x-request-id: req_[a-z2-7]{24}\r\n", head)
    events = unchunk(rest).split(b"\n\n")
    assert events.pop() == b""
    assert events.pop() == b"data: [DONE]"
    assert all(event.startswith(b"data: {") and b"\n" not in event for event in events)
    chunks = [json.loads(event.removeprefix(b"data: ")) for event in events]
    assert "".join(choice["text"] for chunk in chunks for choice in chunk["choices"]) == "ab"
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "total_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
        "completion_tokens_details": {
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
            "reasoning_tokens": 0,
            "audio_tokens": 0,
        },
    }


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_aborts_its_request(house: House, stream: bool):
    before = len(await usage_rows(house.dsn, house.acme.project_id, "abort", 0))
    body = {"model": "tiny", "prompt": "abc", "max_tokens": 500, "stream": stream}
    sock = raw_post(house.gateway.port, house.acme.key, "/v1/completions", body)
    if stream:
        assert sock.recv(100)
    else:
        async with asyncio.timeout(PATIENCE_S):
            while not house.gateway.num_in_flight:  # noqa: ASYNC110 - what it asks has no event
                await asyncio.sleep(0.005)
    sock.close()
    rows = await usage_rows(house.dsn, house.acme.project_id, "abort", before + 1)
    assert len(rows) == before + 1
    assert (1 if stream else 0) <= rows[-1]["completion_tokens"] < 500  # the whole answer takes a second
    assert rows[-1]["stream"] is stream


def test_a_client_that_leaves_in_the_middle_of_its_body_is_no_fault_of_the_server(house: House):
    with socket.create_connection(("127.0.0.1", house.gateway.port), timeout=PATIENCE_S) as sock:
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {house.acme.key}\r\n"
        sock.sendall(f'{head}content-length: 100\r\n\r\n{{"model":'.encode())
    count = re.compile(r'^lorikeet_http_requests_total\{.*route="/v1/completions",status="(499|500)"\}', re.MULTILINE)
    counted = wait_until(lambda: count.findall(house.gateway.metrics()))
    assert counted == ["499"]


async def test_each_request_is_one_row_with_exact_counts(house: House):
    project = house.globex.project_id
    before = {reason: len(await usage_rows(house.dsn, project, reason, 0)) for reason in ("length", "stop")}
    async with httpx.AsyncClient(
        base_url=house.url, headers={"authorization": f"Bearer {house.globex.key}"}, timeout=PATIENCE_S
    ) as http:
        replies = [
            await http.post(
                "/v1/completions", json={"model": model, "prompt": "abcdefgh", "max_tokens": 9, "stop": stop}
            )
            for model, stop in [("tiny", None), ("tiny:poet", None), ("tiny", "ef")]
        ]
    length = (await usage_rows(house.dsn, project, "length", before["length"] + 2))[before["length"] :]
    stopped = (await usage_rows(house.dsn, project, "stop", before["stop"] + 1))[before["stop"] :]
    assert [row["request_id"] for row in [*length, *stopped]] == [reply.headers["x-request-id"] for reply in replies]
    for row, reply in zip([*length, *stopped], replies, strict=True):
        assert row["prompt_tokens"] == reply.json()["usage"]["prompt_tokens"]
        assert row["completion_tokens"] == reply.json()["usage"]["completion_tokens"]
        assert row["ttft_ms"] <= row["latency_ms"]
    assert [row["model"] for row in length] == ["tiny", "tiny:poet"]
    assert [row["adapter_digest"] for row in length] == [None, house.globex.digest]
    assert stopped[0]["completion_tokens"] == 6


METRICS = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:num_preemptions_total",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:time_to_first_token_seconds_bucket",
    "vllm:e2e_request_latency_seconds_bucket",
    "vllm:request_success_total",
    "vllm:request_queue_time_seconds_bucket",
    "vllm:request_time_per_output_token_seconds_bucket",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:spec_decode_num_draft_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_total",
    "lorikeet_adapter_loads_total",
    "lorikeet_adapter_load_bytes_total",
    "lorikeet_adapter_load_seconds_total",
    "lorikeet_adapter_evictions_total",
    "lorikeet_adapter_slots",
    "lorikeet_tokens_total",
    "lorikeet_tenant_tokens_total",
    "lorikeet_tenant_time_to_first_token_seconds_bucket",
    "lorikeet_http_requests_total",
    "lorikeet_engine_up",
)


def test_metrics_have_vllms_names(house: House):
    body = {"model": "tiny", "prompt": "abc", "max_tokens": 2}
    httpx.post(
        f"{house.url}/v1/completions",
        json=body,
        headers={"authorization": f"Bearer {house.acme.key}"},
        timeout=PATIENCE_S,
    )

    def has_all() -> bool:
        text = house.gateway.metrics()
        return all(f"\n{name}{{" in text for name in METRICS)

    wait_until(has_all)  # the engine's own numbers come with its next heartbeat


@pytest.fixture
def slow(dsn: str, tmp_path) -> Iterator[tuple[LiveGateway, FakeEngine, Tenant]]:
    """Give a gateway with an engine at 20 tokens per second, which may be killed, the engine, and a tenant."""
    model_dir = make_model_folder(tmp_path / "model")
    tenant = asyncio.run(make_tenant(dsn, "acme", "pirate", "1"))
    with running_gateways(dsn, model_dir, engine_flags=("--tokens-per-s", "20"), data_dir=tmp_path) as installed:
        yield installed.gateway, installed.engine, tenant


def test_an_engine_that_dies_ends_its_streams_with_an_error_and_the_next_one_serves(slow, dsn: str):
    gateway, engine, tenant = slow
    headers = {"authorization": f"Bearer {tenant.key}"}
    body = {"model": "tiny", "prompt": "abc", "max_tokens": 400, "stream": True}
    with raw_post(gateway.port, tenant.key, "/v1/completions", body) as sock:
        received = b""
        while received.count(b"\n\n") < 2:
            received += sock.recv(65536)
        engine.kill()
        received += read_all(sock)
    assert received.endswith(b"}}\n\n\r\n0\r\n\r\n"), "the stream's framing is whole"
    assert b"[DONE]" not in received
    *seen, last = unchunk(received.partition(b"\r\n\r\n")[2]).removesuffix(b"\n\n").split(b"\n\n")
    error = json.loads(last.removeprefix(b"data: "))["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == "backend_failed"
    cut = 'lorikeet_streams_cut_total{route="/v1/completions"} 1.0'
    wait_until(lambda: cut in gateway.metrics().splitlines())
    unready = httpx.get(f"{gateway.url}/health/ready", timeout=PATIENCE_S)
    assert (unready.status_code, unready.json()) == (503, {"status": "not ready"})
    for path in ("/health/live", "/health"):
        assert httpx.get(f"{gateway.url}{path}", timeout=PATIENCE_S).status_code == 200
    assert httpx.get(f"{gateway.url}/health", timeout=PATIENCE_S).content == b""

    refused = httpx.post(
        f"{gateway.url}/v1/completions", json={**body, "stream": False}, headers=headers, timeout=PATIENCE_S
    )
    assert refused.status_code == 503
    assert refused.headers["retry-after"] == "1"

    engine.restart()
    gateway.wait_ready()
    again = httpx.post(
        f"{gateway.url}/v1/completions", json={**body, "stream": False, "max_tokens": 2}, headers=headers
    )
    assert again.json()["choices"][0]["text"] == "ab"
    rows = asyncio.run(usage_rows(dsn, tenant.project_id, "error"))
    assert len(rows) == 1
    assert rows[0]["completion_tokens"] >= len(seen)
    assert rows[0]["prompt_tokens"] == 3
