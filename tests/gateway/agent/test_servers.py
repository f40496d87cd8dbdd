"""Servers of another maker that an agent starts like replicas of our own engine, each with its own socket and key."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapters.ref import content_key
from adapters.store import AdapterStore
from gateway.db.pools.replicas import replace_replicas
from gateway.domain.pools.addresses import key_file_of, socket_of
from tests.adapters.folders import write_adapter
from tests.gateway.agent import fake_llama_server
from tests.gateway.agent.server_site import Site, connected_backend, token_request
from tests.gateway.agent.site import Host
from tests.gateway.backends.foreign.backends import collect
from tests.installation.waiting import until

SETTINGS = {"preloaded_adapters": "true", "num_slots": "1"}


@pytest.fixture
def site(host: Host, tmp_path: Path) -> Iterator[Site]:
    program = tmp_path / "llama-server"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {fake_llama_server.__file__} "$@"\n')
    program.chmod(0o755)
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    host.variables["LORIKEET_LLAMA_SERVER"] = str(program)
    site = Site(host, tmp_path, str(tmp_path / "model.gguf"), "llamacpp", SETTINGS)
    yield site
    host.close()
    site.close()


def key_of(socket: str) -> str:
    """Return the key in the file beside a socket; "" where there is none."""
    path = Path(key_file_of(socket))
    return path.read_text().strip() if path.exists() else ""


def modes(socket: str) -> tuple[int, int]:
    """Return the file mode of a socket's key file, and that of its folder."""
    path = Path(key_file_of(socket))
    return path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777


async def test_a_server_is_started_with_its_adapters_and_a_key_that_only_files_have(site: Site, tmp_path: Path) -> None:
    base = site.host.model()
    store = AdapterStore(site.host.data_dir / "adapters")
    digest = store.add(write_adapter(tmp_path / "peft"))
    pool = await site.pool(base, digest, "0" * 64)
    agent = site.host.agent()
    [row] = await site.host.ready()
    socket = socket_of(str(row.address))
    assert socket is not None
    key = key_of(socket)
    assert modes(socket) == (0o600, 0o700)
    assert key not in " ".join(site.command)
    assert [Path(each).stem for each in site.command if each.endswith(f"{digest}.gguf")] == [digest]
    assert "0" * 64 not in " ".join(site.command), "one that the store does not have is left out"
    async with connected_backend(site, row, base) as (backend, _):
        assert (await collect(backend, token_request([1, 2, 3]))).text == "base"
        assert (await collect(backend, token_request([1, 2, 3], content_key("tenant", digest)))).text == digest

    # the agent dies, and another one finds the server serving
    pids = site.pids()
    agent.kill()
    site.host.agent()
    await until(lambda: site.host.has_generation(2))
    [after] = await site.host.ready()
    assert (after.id, after.generation, site.pids()) == (row.id, 1, pids)

    # the server dies, and is started anew with another key
    os.kill(pids[0], signal.SIGKILL)

    async def restarted() -> bool:
        return [each.generation for each in await site.host.replicas("ready")] == [2]

    await until(restarted, site.host.log)
    assert not key_of(socket), "the files of the first start are gone"
    [row] = await site.host.ready()
    assert key_of(str(socket_of(str(row.address)))) not in ("", key)

    # another set of adapters is another revision, whose server takes the place of this one
    await site.revision(pool, base)
    [changed] = await site.host.ready(revision=2)
    assert changed.id != row.id
    assert "--lora" not in site.command
    await until(lambda: answer_with(len(site.pids()) == 1), site.host.log)


async def test_a_draining_server_is_kept_while_it_runs_a_request(site: Site) -> None:
    site.host.variables["LORIKEET_REPLICA_DRAIN_SECONDS"] = "60"
    await site.pool(site.host.model())
    site.host.agent()
    [row] = await site.host.ready()
    site.fault("busy")
    async with site.host.database.acquire() as conn:
        await replace_replicas(conn, [row.id])

    async def is_replaced() -> bool:
        return [each.id != row.id for each in await site.host.replicas("ready")] == [True]

    await until(is_replaced, site.host.log)
    assert [each.id for each in await site.host.replicas("draining")] == [row.id]
    await asyncio.sleep(3.0)  # longer than an idle one is given
    assert len(site.pids()) == 2
    site.fault("")
    await until(lambda: answer_with(len(site.pids()) == 1), site.host.log)


FAULTS = {
    "crash": "its process ended (code 1): error: no such device",
    "mute": "its engine did not answer within 1 s of its start (LORIKEET_REPLICA_START_SECONDS)",
    "short": "it gave 3 tokens where 4 were asked for",
}


async def test_a_server_that_fails_again_and_again_waits_longer_and_says_why(site: Site) -> None:
    site.host.variables["LORIKEET_REPLICA_START_SECONDS"] = "1"
    site.fault("crash")
    await site.pool(site.host.model())
    site.host.agent()
    num_failures, pauses_s = 0, list[float]()
    for fault, why in FAULTS.items():
        site.fault(fault)

        async def has_failed(why: str = why, more_than: int = num_failures) -> bool:
            [row] = await site.host.replicas() or [None]  # type: ignore[list-item]
            return row is not None and row.state == "failed" and row.why == why and row.num_failures > more_than

        await until(has_failed, site.host.log)
        [row] = await site.host.replicas()
        num_failures = row.num_failures
        assert row.retry_at is not None
        pauses_s.append((row.retry_at - row.since).total_seconds())
    assert pauses_s == sorted(pauses_s) and pauses_s[-1] > 1
    assert (site.host.data_dir / "log" / f"engine-{row.id}.log").exists()
    site.fault("")
    assert [each.generation > num_failures for each in await site.host.ready()] == [True], (
        "it is tried until it is well"
    )


async def test_a_host_without_the_program_gets_no_server(site: Site) -> None:
    site.host.variables["LORIKEET_LLAMA_SERVER"] = "/nowhere/llama-server"
    await site.pool(site.host.model())
    site.host.agent()

    async def is_refused() -> bool:
        served = await site.host.served()
        return served is not None and "has no program of 'llamacpp'" in served.revisions[1].why

    await until(is_refused, site.host.log)
    assert await site.host.replicas() == []


async def answer_with(value: bool) -> bool:
    return value
