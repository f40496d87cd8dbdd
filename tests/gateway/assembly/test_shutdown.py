"""After SIGTERM running requests finish; those that take longer than the drain end in order. All of them are billed."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import asyncpg
import httpx
import msgspec

from gateway.settings import Settings
from tests.gateway.live import BASE, FakeEngine, make_tenant
from tests.gateway.model_folder import make_model_folder
from tests.installation.gateway_process import GatewayProcess
from tests.installation.waiting import wait_until
from tests.patience import PATIENCE_S


async def completion_tokens(dsn: str) -> list[int]:
    conn = await asyncpg.connect(dsn)
    try:
        return [row["completion_tokens"] for row in await conn.fetch("SELECT completion_tokens FROM usage_attempts")]
    finally:
        await conn.close()


async def idempotency_states(dsn: str) -> list[str]:
    conn = await asyncpg.connect(dsn)
    try:
        return [row["state"] for row in await conn.fetch("SELECT state FROM idempotency_keys")]
    finally:
        await conn.close()


def wait_running(running: RunningGateway, count: int) -> None:
    """Return once the engine's heartbeat says that `count` requests run."""
    pattern = rf"^vllm:num_requests_running.* {count}\.0$"
    wait_until(lambda: re.search(pattern, running.metrics(), re.MULTILINE), pause_s=0.1)


class RunningGateway(msgspec.Struct, frozen=True):
    url: str
    key: str
    gateway: GatewayProcess

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, headers={"authorization": f"Bearer {self.key}"}, timeout=PATIENCE_S)

    def metrics(self) -> str:
        return self.gateway.metrics()

    def log_until_end(self) -> str:
        code, log = self.gateway.ended(), self.gateway.log.read_text()
        assert code == 0, log
        assert "gateway_stopped" in log
        assert "Traceback" not in log, log
        return log


@contextmanager
def running_gateway(dsn: str, folder: Path, *, drain_s: float, lame_duck_s: float = 0.0) -> Iterator[RunningGateway]:
    model_dir = make_model_folder(folder / "model")
    tenant = asyncio.run(make_tenant(dsn, "acme", "pirate", "1"))
    settings = Settings(
        data_dir=folder, model=str(model_dir), model_name=BASE, drain_seconds=drain_s, lame_duck_seconds=lame_duck_s
    )
    settings.run_dir.mkdir()
    engine = FakeEngine(settings.engine.endpoint, model_dir, "--tokens-per-s", "50")
    gateway = GatewayProcess(settings, dsn)
    try:
        gateway.start()
        gateway.wait_ready()
        yield RunningGateway(gateway.url, tenant.key, gateway)
    finally:
        gateway.close()
        engine.kill()


def test_a_running_stream_finishes_after_sigterm_and_is_billed(dsn: str, tmp_path: Path):
    with running_gateway(dsn, tmp_path, drain_s=10) as running, running.client() as client:
        body = {"model": "tiny", "prompt": "abc", "max_tokens": 40, "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as reply:
            lines = (line for line in reply.iter_lines() if line)
            next(lines)
            running.gateway.begin_to_stop()
            rest = list(lines)
        assert rest[-1] == "data: [DONE]"
        running.log_until_end()
        assert asyncio.run(completion_tokens(dsn)) == [40]


def test_a_first_request_that_is_on_its_way_is_answered_and_idle_connections_are_closed(dsn: str, tmp_path: Path):
    with running_gateway(dsn, tmp_path, drain_s=10) as running:
        place = ("127.0.0.1", httpx.URL(running.url).port or 0)
        request = b"GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n"
        with socket.create_connection(place) as fresh, socket.create_connection(place) as used:
            used.settimeout(PATIENCE_S)
            used.sendall(request)
            answer = b""
            while not answer.endswith(b'{"status":"ok"}'):
                answer += used.recv(4096)
            running.gateway.begin_to_stop()
            assert used.recv(4096) == b"", "it is idle: the stop has begun"
            fresh.sendall(request)
            fresh.settimeout(PATIENCE_S)
            reply = fresh.recv(4096)
            assert reply.startswith(b"HTTP/1.1 200")
            assert b"connection: close" in reply.lower()
        running.log_until_end()


def statuses(running: RunningGateway) -> dict[str, int]:
    """Return the statuses of both ports' probes, by path; paths of the operator's port begin with "operator"."""
    paths = ("/health/startup", "/health/live", "/health/ready")
    of_tenants = {path: httpx.get(running.url + path, timeout=PATIENCE_S).status_code for path in paths}
    of_operator = running.gateway.operator_url
    return of_tenants | {
        f"operator {path}": httpx.get(of_operator + path, timeout=PATIENCE_S).status_code for path in paths
    }


def test_a_gateway_that_is_about_to_stop_says_so_and_serves_until_a_balancer_has_noticed(dsn: str, tmp_path: Path):
    body = {"model": "tiny", "prompt": "abc", "max_tokens": 3}
    with running_gateway(dsn, tmp_path, drain_s=10, lame_duck_s=3600) as running, running.client() as client:
        assert set(statuses(running).values()) == {200}
        before = client.post("/v1/completions", json=body)
        assert (before.status_code, before.headers.get("connection")) == (200, None)
        with client.stream("POST", "/v1/completions", json=body | {"max_tokens": 100, "stream": True}) as reply:
            lines = (line for line in reply.iter_lines() if line)
            next(lines)
            running.gateway.begin_to_stop()
            wait_until(lambda: statuses(running)["/health/ready"] == 503)
            assert {path for path, status in statuses(running).items() if status != 200} == {
                "/health/ready",
                "operator /health/ready",
            }
            late = httpx.post(f"{running.url}/v1/completions", json=body, headers=client.headers, timeout=PATIENCE_S)
            assert (late.status_code, late.headers["connection"]) == (200, "close")
            rest = list(lines)
        assert rest[-1] == "data: [DONE]"
        running.gateway.begin_to_stop()  # a second signal: nobody is waited for
        running.log_until_end()
    assert sorted(asyncio.run(completion_tokens(dsn))) == [3, 3, 100]


def test_a_gateway_stops_by_itself_once_a_balancer_has_had_its_time(dsn: str, tmp_path: Path):
    with running_gateway(dsn, tmp_path, drain_s=10, lame_duck_s=0.2) as running:
        running.gateway.begin_to_stop()
        assert "lame_duck" in running.log_until_end()


def test_requests_that_outlast_the_drain_end_with_an_error_that_says_why_and_are_billed(dsn: str, tmp_path: Path):
    """Three requests would need eight seconds for their 400 tokens: a stream, one with and one without idempotency key.

    Two more requests wait for the reply of the one with the key. A body that never arrives completely does not delay
    the end.
    """
    body = {"model": "tiny", "prompt": "abc", "max_tokens": 400}
    keyed = {"idempotency-key": "one"}
    with running_gateway(dsn, tmp_path, drain_s=1) as running, running.client() as client, ThreadPoolExecutor() as pool:

        def post(headers: dict[str, str]) -> httpx.Response:
            return client.post("/v1/completions", json=body, headers=headers)

        slow = socket.create_connection(("127.0.0.1", httpx.URL(running.url).port or 0))
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {running.key}\r\n"
        slow.sendall(head.encode() + b"content-length: 100\r\n\r\n{")
        with client.stream("POST", "/v1/completions", json=body | {"stream": True}) as reply:
            lines = (line for line in reply.iter_lines() if line)
            next(lines)
            whole = [pool.submit(post, headers) for headers in ({}, keyed, keyed, keyed)]
            wait_running(running, 3)
            running.gateway.begin_to_stop()
            *_, last = lines
        answers = [each.result() for each in whole]
        running.log_until_end()
        slow.close()
    error = msgspec.json.decode(last.removeprefix("data: "))["error"]
    assert (error["type"], error["code"]) == ("server_error", "server_shutting_down")
    assert [each.status_code for each in answers] == [503] * 4
    assert all(each.json()["error"] == error for each in answers)
    assert answers[0].headers["retry-after"] == "1"
    assert all(each.headers["x-should-retry"] == "false" for each in answers[1:]), "this key only brings it again"
    assert sorted("idempotent-replayed" in each.headers for each in answers) == [False, False, True, True]
    assert asyncio.run(idempotency_states(dsn)) == ["kept"]
    billed = asyncio.run(completion_tokens(dsn))
    assert len(billed) == 3
    assert all(0 < tokens < 400 for tokens in billed)
