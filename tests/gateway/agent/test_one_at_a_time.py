"""An agent's death leaves its engines serving, and two agents never run one replica, whatever freezes when."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time

from engine.protocol import DEAD_AFTER_S
from tests.gateway.agent.site import Host
from tests.installation.processes import frozen
from tests.installation.waiting import until
from tests.patience import PATIENCE_S

NUM_FAULTS, FULL_FAULTS = 6, 300


async def test_engines_serve_on_when_their_agent_is_killed_and_the_next_one_adopts_them(host: Host) -> None:
    await host.pool(host.model())
    agent = host.agent()
    [before] = await host.ready()
    pids = host.pids()
    agent.kill()
    second = host.agent()
    await until(lambda: host.has_generation(2))
    [after] = await host.ready()
    assert (after.id, after.generation, host.pids()) == (before.id, before.generation, pids)
    os.kill(pids[0], signal.SIGKILL)

    async def restarted() -> bool:
        return [each.generation for each in await host.replicas("ready")] == [2]

    await until(restarted, host.log)
    assert second.terminate() == 0
    assert len(host.pids()) == 1, "an agent that ends by itself leaves its engines"


async def test_an_agent_that_wakes_up_too_late_ends_and_touches_nothing(host: Host) -> None:
    await host.pool(host.model())
    first = host.agent()
    await host.ready()
    with frozen(first.pid):
        host.agent()
        await until(lambda: host.has_generation(2), host.log)
        os.kill(host.pids()[0], signal.SIGKILL)  # the second agent starts it anew: the first one knows nothing of it

        async def restarted() -> bool:
            return [each.generation for each in await host.replicas("ready")] == [2]

        await until(restarted, host.log)
        pids = host.pids()
    assert first.popen is not None
    assert await asyncio.to_thread(first.popen.wait, PATIENCE_S) == os.EX_TEMPFAIL
    assert "agent: another agent has host" in host.log()
    assert host.pids() == pids
    assert [each.generation for each in await host.ready()] == [2]


async def test_an_agent_that_was_frozen_does_not_judge_its_replicas_silent(host: Host) -> None:
    pool = await host.pool(host.model())
    agent = host.agent()
    [before] = await host.ready()
    with frozen(agent.pid):
        await asyncio.sleep(DEAD_AFTER_S + 1.0)
    await host.scale(pool, 2)
    after = next(each for each in await host.ready(2) if each.id == before.id)
    assert after.since == before.since, "its row was never anything but ready"


async def test_a_second_agent_waits_while_the_first_one_lives(host: Host) -> None:
    await host.pool(host.model())
    first = host.agent()
    await host.ready()
    host.agent()
    await asyncio.sleep(1.0)
    assert await host.has_generation(1)
    first.terminate()
    started_s = time.monotonic()
    await until(lambda: host.has_generation(2), host.log)
    assert time.monotonic() - started_s < PATIENCE_S
    assert [each.generation for each in await host.ready()] == [1]


async def test_two_agents_never_run_one_replica_twice(host: Host, full: bool) -> None:
    """Agents are killed and frozen at random moments, also while they start engines.

    The kernel's list of processes shows throughout which engines run.
    """
    pool = await host.pool(host.model(), num_replicas=2)
    rng, num_faults = random.Random(22), FULL_FAULTS if full else NUM_FAULTS
    seen = host.watched_addresses()

    async def has_engines() -> bool:
        return bool(host.pids())

    agents = [host.agent(), host.agent()]
    for number in range(num_faults):
        await asyncio.sleep(rng.uniform(0.05, 1.0))
        if number % 2:  # as slow as the machine may be, engines are started anew
            await until(has_engines, host.log)
        if pids := host.pids():
            os.kill(rng.choice(pids), signal.SIGKILL)
        victim = rng.randrange(2)
        if number % 3 == 0:
            pid = agents[victim].pid
            with contextlib.suppress(ProcessLookupError):  # of an agent that found itself replaced, and has ended
                os.kill(pid, signal.SIGSTOP)
            asyncio.get_running_loop().call_later(rng.uniform(0.1, 7.0), host.go_on, pid)
        else:
            agents[victim].kill()
            agents[victim] = host.agent()
    await host.ready(2)
    assert seen.most_at_once == 1, f"{seen.most_at_once} engines of one replica lived at once"
    await seen.stop()
    assert len(seen.generations) >= num_faults // 2, "the test must have started engines anew"
    await host.scale(pool, 0)
    await host.ready(0)
