"""A gateway that is killed in the middle of a stream loses no usage: the engine reports it to the next gateway."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import asyncpg
import httpx
import pytest

from gateway.postgres.embedded import running_dsn
from tests.e2e.installation import BASE, Installation
from tests.installation.waiting import wait_ready, wait_until
from tests.patience import PATIENCE_S


def gateway_pid(installation: Installation) -> int:
    """Return the pid of the child of `serve` that got its listening socket."""
    assert installation.process is not None
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])  # proc(5)
            command = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if parent == installation.process.pid and b"--fd" in command:
            return int(entry.name)
    raise AssertionError("no gateway process")


async def usage(installation: Installation, request_id: str) -> list[asyncpg.Record]:
    dsn = running_dsn(installation.data_dir)
    assert dsn is not None
    conn = await asyncpg.connect(dsn)
    try:
        return await conn.fetch("SELECT * FROM usage_attempts WHERE request_id = $1", request_id)
    finally:
        await conn.close()


def test_a_stream_whose_gateway_was_killed_is_billed_as_the_engine_counted(installation: Installation) -> None:
    body = {"model": f"{BASE}:pirate", "prompt": "Once upon a time", "max_tokens": 1500, "ignore_eos": True}
    keys = installation.keys
    with httpx.stream(
        "POST",
        f"{installation.url}/v1/completions",
        json={**body, "stream": True},
        headers={"Authorization": f"Bearer {keys['OPENAI_API_KEY']}"},
        timeout=PATIENCE_S,
    ) as reply:
        request_id = reply.headers["x-request-id"]
        events = (line for line in reply.iter_lines() if line.startswith("data: "))
        seen = [next(events) for _ in range(5)]
        os.kill(gateway_pid(installation), signal.SIGKILL)
        with pytest.raises(httpx.TransportError):
            seen.extend(events)

    def is_billed() -> bool:
        return [row["finish_reason"] for row in asyncio.run(usage(installation, request_id))] == ["abort"]

    wait_until(is_billed, pause_s=0.1)
    (row,) = asyncio.run(usage(installation, request_id))
    assert len(seen) <= row["completion_tokens"] < body["max_tokens"]
    wait_ready(installation.url)
    headers = {"Authorization": f"Bearer {keys['LORIKEET_ADMIN_KEY']}"}
    found = httpx.get(f"{installation.url}/v1/organization/reconciliation", headers=headers, timeout=PATIENCE_S).json()
    assert found["lost_journals"] == []
    assert all(engine["num_dropped"] == 0 for engine in found["engines"])
