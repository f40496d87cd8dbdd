"""SIGTERM lets a running stream finish, bills it, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import asyncpg
import httpx

from gateway.settings import Settings
from tests.gateway.live import BASE, FakeEngine, make_tenant
from tests.gateway.model_folder import make_model_folder

PROGRAM = """
import pathlib, socket, sys
from gateway.app import run_gateway
from gateway.settings import Settings
data_dir, model_dir, dsn, fd = sys.argv[1:]
settings = Settings(data_dir=pathlib.Path(data_dir), model=model_dir, model_name="tiny", drain_seconds=10)
run_gateway(settings, model_dir=pathlib.Path(model_dir), dsn=dsn, sockets=[socket.socket(fileno=int(fd))])
"""


async def completion_tokens(dsn: str) -> list[int]:
    conn = await asyncpg.connect(dsn)
    try:
        return [row["completion_tokens"] for row in await conn.fetch("SELECT completion_tokens FROM usage_attempts")]
    finally:
        await conn.close()


def wait_ready(url: str) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            if httpx.get(f"{url}/health/ready", timeout=20).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    raise AssertionError("the gateway did not become ready")


def test_a_running_stream_finishes_after_sigterm_and_is_billed(dsn: str, tmp_path: Path):
    model_dir = make_model_folder(tmp_path / "model")
    tenant = asyncio.run(make_tenant(dsn, "acme", "pirate", "1"))
    settings = Settings(data_dir=tmp_path, model=str(model_dir), model_name=BASE)
    settings.run_dir.mkdir()
    engine = FakeEngine(settings.engine_endpoint, model_dir, "--tokens-per-s", "50")
    listener = socket.create_server(("127.0.0.1", 0))
    fd = listener.fileno()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    gateway = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path), str(model_dir), dsn, str(fd)],
        pass_fds=[fd],
        stderr=subprocess.PIPE,
    )
    try:
        listener.close()
        wait_ready(url)
        body = {"model": "tiny", "prompt": "abc", "max_tokens": 40, "stream": True}
        headers = {"authorization": f"Bearer {tenant.key}"}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, headers=headers, timeout=20) as reply:
            lines = (line for line in reply.iter_lines() if line)
            next(lines)
            gateway.send_signal(signal.SIGTERM)
            rest = list(lines)
        assert rest[-1] == "data: [DONE]"
        _, log = gateway.communicate(timeout=20)
        assert gateway.returncode == 0, log
        assert b"gateway_stopped" in log
        assert b"Traceback" not in log
        assert asyncio.run(completion_tokens(dsn)) == [40]
    finally:
        gateway.kill()
        gateway.communicate()
        engine.kill()
