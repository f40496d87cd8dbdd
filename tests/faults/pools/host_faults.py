"""Faults over hosts, by kind: each begins when its context is entered, and is over when the context is left."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import msgspec

from tests.faults.pools.hosts import ENGINE_HOSTS, GATEWAY_HOSTS, Hosts
from tests.faults.pools.stations import HUB
from tests.installation.processes import frozen
from tests.installation.waiting import until

SOON_S = (1.0, 4.5, 8.0, 12.0)
"""The durations of faults in seconds: below three heartbeats, above that, above an agent's lease, and well above that.
"""
LONG_S = 40.0
"""Seconds of silence after which a host's replicas have been started on other hosts."""
BESIDE_S = 2.0
"""Seconds for which two agents of one host run at the same time."""
ONE_IN = 8
"""The reciprocal of the share of faults that last long."""


class Fault(msgspec.Struct, frozen=True):
    """A fault that has begun."""

    what: str
    """The fault in words."""
    away: tuple[int, ...] = ()
    """Gateways that cannot serve before the fault is over."""
    unheard: tuple[int, ...] = ()
    """Gateways that hear nothing of one engine before the fault is over."""
    begun_s: float = msgspec.field(default_factory=time.monotonic)
    """The time of the fault's beginning by the monotonic clock."""


Context = AbstractAsyncContextManager[Fault]
BOTH = (0, 1)


class FaultKind(msgspec.Struct, frozen=True):
    """A kind of fault."""

    name: str
    begin: Callable[[Hosts, random.Random], Context]
    lasts_s: tuple[float, ...] = SOON_S
    """The seconds to choose from; (0,) where the product mends the fault by itself."""
    can_be_long: bool = False
    """True if the fault may also last for longer than half a minute, after which the product acts otherwise."""

    def duration_s(self, rng: random.Random) -> float:
        """Draw the duration of a fault of this kind in seconds."""
        is_long = rng.randrange(ONE_IN) == 0
        return LONG_S if self.can_be_long and is_long else rng.choice(self.lasts_s)


def _pid(hosts: Hosts, name: str) -> int:
    """Return the process id of a host's only engine."""
    [pid] = hosts.by_name[name].pids()
    return pid


async def _kill_engines(hosts: Hosts, name: str) -> None:
    """Kill the engines of a host, and wait until they are gone: until then all would seem whole."""
    killed = hosts.by_name[name].pids()
    for pid in killed:
        os.kill(pid, signal.SIGKILL)

    async def are_gone() -> bool:
        return not {*killed} & {*hosts.by_name[name].pids()}

    await until(are_gone)


@asynccontextmanager
async def _engine_killed(hosts: Hosts, rng: random.Random) -> AsyncIterator[Fault]:
    name = rng.choice(ENGINE_HOSTS)
    await _kill_engines(hosts, name)
    yield Fault(f"the engine on {name} was killed")


@asynccontextmanager
async def _engine_frozen(hosts: Hosts, rng: random.Random) -> AsyncIterator[Fault]:
    name = rng.choice(ENGINE_HOSTS)
    with frozen(_pid(hosts, name)):
        yield Fault(f"the engine on {name} was frozen", unheard=BOTH)


@asynccontextmanager
async def _agent_killed(hosts: Hosts, rng: random.Random) -> AsyncIterator[Fault]:
    name = rng.choice(ENGINE_HOSTS)
    await asyncio.to_thread(hosts.agents[name].kill)
    yield Fault(f"the agent on {name} was killed")
    hosts.start_agent(name)


@asynccontextmanager
async def _agent_frozen(hosts: Hosts, rng: random.Random) -> AsyncIterator[Fault]:
    name = rng.choice(ENGINE_HOSTS)
    with hosts.agents[name].frozen():
        yield Fault(f"the agent on {name} was frozen")


@asynccontextmanager
async def _agent_replaced(hosts: Hosts, rng: random.Random) -> AsyncIterator[Fault]:
    """Freeze an agent, and start another one, which takes the host once the lease has expired."""
    name = rng.choice(ENGINE_HOSTS)
    former = hosts.agents[name]
    with former.frozen():
        hosts.start_agent(name)
        yield Fault(f"the agent on {name} was frozen, and another one started beside it")
    await asyncio.sleep(BESIDE_S)
    await asyncio.to_thread(former.kill)  # where the lease was still its own, it goes on


@asynccontextmanager
async def _host_killed(hosts: Hosts, rng: random.Random) -> AsyncIterator[Fault]:
    name = rng.choice(ENGINE_HOSTS)
    await asyncio.to_thread(hosts.agents[name].kill)
    await _kill_engines(hosts, name)
    yield Fault(f"all on {name} was killed", unheard=BOTH)
    hosts.start_agent(name)


@asynccontextmanager
async def _gateway_killed(hosts: Hosts, rng: random.Random) -> AsyncIterator[Fault]:
    number = rng.randrange(len(hosts.gateways))
    await asyncio.to_thread(hosts.gateways[number].kill)
    yield Fault(f"gateway {number} was killed", away=(number,))
    await asyncio.to_thread(hosts.gateways[number].start)


@asynccontextmanager
async def _gateway_frozen(hosts: Hosts, rng: random.Random) -> AsyncIterator[Fault]:
    number = rng.randrange(len(hosts.gateways))
    with hosts.gateways[number].frozen():
        yield Fault(f"gateway {number} was frozen", away=(number,))


@asynccontextmanager
async def _gateway_cut_from_engine(hosts: Hosts, rng: random.Random) -> AsyncIterator[Fault]:
    number, name = rng.randrange(len(hosts.gateways)), rng.choice(ENGINE_HOSTS)
    with hosts.stations.cut(GATEWAY_HOSTS[number], name):
        yield Fault(f"gateway {number} was cut from {name}", unheard=(number,))


@asynccontextmanager
async def _agent_cut_from_database(hosts: Hosts, rng: random.Random) -> AsyncIterator[Fault]:
    name = rng.choice(ENGINE_HOSTS)
    with hosts.stations.cut(name, HUB):
        yield Fault(f"{name} was cut from the database")


@asynccontextmanager
async def _gateway_cut_from_database(hosts: Hosts, rng: random.Random) -> AsyncIterator[Fault]:
    number = rng.randrange(len(hosts.gateways))
    with hosts.stations.cut(GATEWAY_HOSTS[number], HUB):
        yield Fault(f"gateway {number} was cut from the database")


@asynccontextmanager
async def _hosts_cut(hosts: Hosts, rng: random.Random) -> AsyncIterator[Fault]:
    one, other = rng.choice((ENGINE_HOSTS, GATEWAY_HOSTS))
    with hosts.stations.cut(one, other):
        yield Fault(f"{one} was cut from {other}")


@asynccontextmanager
async def _host_cut_off(hosts: Hosts, rng: random.Random) -> AsyncIterator[Fault]:
    name, other = rng.sample(ENGINE_HOSTS, 2)
    with hosts.stations.cut(name, other, *GATEWAY_HOSTS, HUB):
        yield Fault(f"{name} was cut from all others", unheard=BOTH)


@asynccontextmanager
async def _gateway_cut_off(hosts: Hosts, rng: random.Random) -> AsyncIterator[Fault]:
    number = rng.randrange(len(hosts.gateways))
    with hosts.stations.cut(GATEWAY_HOSTS[number], *ENGINE_HOSTS, HUB):
        yield Fault(f"gateway {number} was cut from all others", away=(number,))


@asynccontextmanager
async def _database_stopped(hosts: Hosts, rng: random.Random) -> AsyncIterator[Fault]:
    stopped = hosts.postgres.stopped()
    await asyncio.to_thread(stopped.__enter__)
    try:
        yield Fault("the database was stopped")
    finally:
        await asyncio.to_thread(stopped.__exit__, None, None, None)


@asynccontextmanager
async def _database_frozen(hosts: Hosts, rng: random.Random) -> AsyncIterator[Fault]:
    with hosts.postgres.frozen():
        yield Fault("the database was frozen")


@asynccontextmanager
async def _database_killed(hosts: Hosts, rng: random.Random) -> AsyncIterator[Fault]:
    await asyncio.to_thread(hosts.postgres.kill)
    yield Fault("the database was killed, and started again")


KINDS = (
    FaultKind("engine killed", _engine_killed, (0.0,)),
    FaultKind("gateway cut from engine", _gateway_cut_from_engine),
    FaultKind("agent killed", _agent_killed, can_be_long=True),
    FaultKind("engine frozen", _engine_frozen, can_be_long=True),
    FaultKind("agent frozen", _agent_frozen, can_be_long=True),
    FaultKind("agent replaced", _agent_replaced, (1.0, 6.0, 12.0)),
    FaultKind("host killed", _host_killed, can_be_long=True),
    FaultKind("gateway killed", _gateway_killed),
    FaultKind("gateway frozen", _gateway_frozen),
    FaultKind("agent cut from database", _agent_cut_from_database, can_be_long=True),
    FaultKind("gateway cut from database", _gateway_cut_from_database),
    FaultKind("host cut from host", _hosts_cut),
    FaultKind("host cut off", _host_cut_off, can_be_long=True),
    FaultKind("gateway cut off", _gateway_cut_off),
    FaultKind("database stopped", _database_stopped),
    FaultKind("database frozen", _database_frozen),
    FaultKind("database killed", _database_killed, (0.0,)),
)
"""The kinds of faults; the seed n stands for the kind with the number n modulo their count."""
