"""SIGTERM lets what runs finish; what takes longer than the drain ends in order. All of it is billed."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import subprocess
import sys
import time
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
from tests.patience import PATIENCE_S

PROGRAM = """
import pathlib, socket, sys
from gateway.app import run_gateway
from gateway.settings import Settings
data_dir, model_dir, dsn, fd, metrics_fd, drain_s = sys.argv[1:]
settings = Settings(data_dir=pathlib.Path(data_dir), model=model_dir, model_name="tiny", drain_seconds=float(drain_s))
sockets, metrics = [socket.socket(fileno=int(fd))], socket.socket(fileno=int(metrics_fd))
run_gateway(settings, model_dir=pathlib.Path(model_dir), dsn=dsn, sockets=sockets, metrics_socket=metrics)
"""


async def completion_tokens(dsn: str) -> list[int]:
    conn = await asyncpg.connect(dsn)
    try:
        return [row["completion_tokens"] for row in await conn.fetch("SELECT completion_tokens FROM usage_attempts")]
    finally:
        await conn.close()


async def slots(dsn: str) -> list[str]:
    conn = await asyncpg.connect(dsn)
    try:
        return [row["state"] for row in await conn.fetch("SELECT state FROM idempotency_keys")]
    finally:
        await conn.close()


def wait_running(running: Running, count: int) -> None:
    """Until the engine's next heartbeat says that so many requests run."""
    deadline = time.monotonic() + PATIENCE_S
    while not re.search(rf"^vllm:num_requests_running.* {count}\.0$", running.metrics(), re.MULTILINE):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def wait_ready(url: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            if httpx.get(f"{url}/health/ready", timeout=PATIENCE_S).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    raise AssertionError("the gateway did not become ready")


class Running(msgspec.Struct, frozen=True):
    url: str
    metrics_url: str
    key: str
    process: subprocess.Popen[bytes]

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, headers={"authorization": f"Bearer {self.key}"}, timeout=PATIENCE_S)

    def metrics(self) -> str:
        return httpx.get(self.metrics_url, timeout=PATIENCE_S).text

    def log_until_end(self) -> bytes:
        _, log = self.process.communicate(timeout=PATIENCE_S)
        assert self.process.returncode == 0, log
        assert b"gateway_stopped" in log
        assert b"Traceback" not in log, log
        return log


@contextmanager
def running_gateway(dsn: str, folder: Path, *, drain_s: float) -> Iterator[Running]:
    model_dir = make_model_folder(folder / "model")
    tenant = asyncio.run(make_tenant(dsn, "acme", "pirate", "1"))
    settings = Settings(data_dir=folder, model=str(model_dir), model_name=BASE)
    settings.run_dir.mkdir()
    engine = FakeEngine(settings.engine.endpoint, model_dir, "--tokens-per-s", "50")
    listener = socket.create_server(("127.0.0.1", 0))
    metrics_listener = socket.create_server(("127.0.0.1", 0))
    fd, metrics_fd = listener.fileno(), metrics_listener.fileno()
    metrics_url = f"http://127.0.0.1:{metrics_listener.getsockname()[1]}/metrics"
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    gateway = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder), str(model_dir), dsn, str(fd), str(metrics_fd), str(drain_s)],
        pass_fds=[fd, metrics_fd],
        stderr=subprocess.PIPE,
    )
    try:
        listener.close()
        metrics_listener.close()
        wait_ready(url)
        yield Running(url, metrics_url, tenant.key, gateway)
    finally:
        gateway.kill()
        gateway.communicate()
        engine.kill()


def test_a_running_stream_finishes_after_sigterm_and_is_billed(dsn: str, tmp_path: Path):
    with running_gateway(dsn, tmp_path, drain_s=10) as running, running.client() as client:
        body = {"model": "tiny", "prompt": "abc", "max_tokens": 40, "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as reply:
            lines = (line for line in reply.iter_lines() if line)
            next(lines)
            running.process.send_signal(signal.SIGTERM)
            rest = list(lines)
        assert rest[-1] == "data: [DONE]"
        running.log_until_end()
        assert asyncio.run(completion_tokens(dsn)) == [40]


def test_what_the_drain_leaves_ends_with_an_error_that_says_why_and_is_billed(dsn: str, tmp_path: Path):
    """50 tokens a second, and no time for 400: of a stream, of a whole request, and of one with two that follow it. A
    body that never comes whole holds nothing up."""
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
            running.process.send_signal(signal.SIGTERM)
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
    assert asyncio.run(slots(dsn)) == ["kept"]
    billed = asyncio.run(completion_tokens(dsn))
    assert len(billed) == 3
    assert all(0 < tokens < 400 for tokens in billed)
