"""An agent that is told to let its engines finish, and the files by which a supervisor sees how an agent is."""

from __future__ import annotations

import os
import signal
import time

from gateway.agent.state_files import ALIVE_NAME, READY_NAME
from gateway.db.pools.hosts import list_hosts
from tests.gateway.agent.site import Host, calling
from tests.installation.waiting import until
from tests.patience import PATIENCE_S


async def is_drained(host: Host) -> bool:
    """Tell whether the only host in the database is drained."""
    async with host.database.acquire() as conn:
        [row] = await list_hosts(conn)
    return row.is_drained


async def test_a_request_that_runs_is_ended_before_the_engine_is_stopped_and_the_next_agent_serves_again(
    host: Host,
) -> None:
    await host.pool(host.model(), num_replicas=2)
    agent = host.agent("--drain-engines")
    row, _ = await host.ready(2)
    assert agent.popen is not None
    async with calling(host, row) as engine:
        answer = engine.call(num_tokens=400)  # two seconds
        await engine.begun()  # an engine that is told to end takes nothing new
        agent.popen.send_signal(signal.SIGTERM)
        final = await answer
    assert final is not None and final.error is None and final.usage.completion_tokens == 400
    assert agent.popen.wait(PATIENCE_S) == 0
    assert host.pids() == [] and await host.replicas() == [] and await is_drained(host)
    assert not (host.data_dir / READY_NAME).exists()
    host.agent()
    await host.ready(2)
    assert not await is_drained(host)


async def test_a_host_that_an_operator_has_drained_stays_drained(host: Host) -> None:
    await host.pool(host.model())
    agent = host.agent("--drain-engines")
    await host.ready()
    async with host.database.acquire() as conn:
        await conn.execute("UPDATE hosts SET is_drained = true")
    assert agent.terminate() == 0
    host.agent()

    async def is_claimed_again() -> bool:
        return await host.has_generation(2)

    await until(is_claimed_again, host.log)
    assert await is_drained(host) and await host.replicas() == []


async def test_a_second_signal_does_not_wait_for_what_runs(host: Host) -> None:
    await host.pool(host.model())
    agent = host.agent("--drain-engines")
    [row] = await host.ready()
    assert agent.popen is not None
    async with calling(host, row) as engine:
        answer = engine.call(num_tokens=10**6)
        await engine.begun()
        agent.popen.send_signal(signal.SIGTERM)

        async def drains() -> bool:
            return [each.state for each in await host.replicas()] == ["draining"]

        await until(drains, host.log)
        agent.popen.send_signal(signal.SIGTERM)
        assert await answer is None, "it was cut off"
    assert agent.popen.wait(PATIENCE_S) == 0 and host.pids() == []


async def test_files_tell_that_an_agent_lives_and_that_its_replicas_are_ready(host: Host) -> None:
    alive, ready = host.data_dir / ALIVE_NAME, host.data_dir / READY_NAME
    ready.touch()
    folder = host.model(mute="")
    await host.pool(folder)
    agent = host.agent()

    async def is_touched_and_not_ready() -> bool:
        return alive.exists() and bool(await host.replicas("loading")) and not ready.exists()

    await until(is_touched_and_not_ready, host.log)
    agent.kill()
    for pid in host.pids():
        host.kill(pid)
    (folder / "mute").unlink()
    os.utime(alive, (0, 0))
    host.agent()
    await host.ready()

    async def is_touched_and_ready() -> bool:
        return ready.exists() and alive.stat().st_mtime > time.time() - PATIENCE_S

    await until(is_touched_and_ready, host.log)
