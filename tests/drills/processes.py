"""Processes that are killed or frozen, and databases that stop, slow down and jump in time."""

from __future__ import annotations

import random
import time

from tests.drills.drill import Drill, under_load
from tests.drills.ground import Ground
from tests.drills.traffic import Traffic

FROZEN_S = 5.0
"""The seconds for which a process is frozen, longer than three heartbeats."""

AWAY_S = 15.0
JUMPING = ({"clock_jumps_s": 3600}, {"clock_jumps_s": -3600})
BEGUN = frozenset({"cut off", "ended after its text had begun", "stream cut", "502 backend_failed"})
"""The outcomes of requests that were running in a process when it was killed."""


def kill_gateway(ground: Ground, traffic: Traffic, rng: random.Random) -> None:
    victim = rng.choice(ground.gateways)
    victim.kill()
    traffic.more_answers(10)
    victim.start()
    victim.wait_ready()


def freeze_gateway(ground: Ground, traffic: Traffic, rng: random.Random) -> None:
    with rng.choice(ground.gateways).frozen():
        time.sleep(FROZEN_S)


def kill_engine(ground: Ground, traffic: Traffic, rng: random.Random) -> None:
    victim = ground.engines.of_base[rng.choice(list(ground.engines.of_base))][0]
    victim.kill()
    traffic.more_answers(20)
    victim.start()


def freeze_engine(ground: Ground, traffic: Traffic, rng: random.Random) -> None:
    with ground.engines.of_base[rng.choice(list(ground.engines.of_base))][0].frozen():
        time.sleep(FROZEN_S)


def kill_everything(ground: Ground, traffic: Traffic, rng: random.Random) -> None:
    """Kill all processes, as when a machine loses power, and start them again."""
    for gateway in ground.gateways:
        gateway.kill()
    for engines in ground.engines.of_base.values():
        for engine in engines:
            engine.kill()
    ground.postgres.kill()
    for engines in ground.engines.of_base.values():
        for engine in engines:
            engine.start()
    for gateway in ground.gateways:
        gateway.start()
    for gateway in ground.gateways:
        gateway.wait_ready()


def kill_database(ground: Ground, traffic: Traffic, rng: random.Random) -> None:
    ground.postgres.kill()


def freeze_database(ground: Ground, traffic: Traffic, rng: random.Random) -> str:
    before = traffic.num_answered
    with ground.postgres.frozen():
        time.sleep(AWAY_S)
        return f"{traffic.num_answered - before} answers meanwhile"


def take_database_away(ground: Ground, traffic: Traffic, rng: random.Random) -> str:
    before = traffic.num_answered
    with ground.postgres.stopped():
        time.sleep(AWAY_S)
        return f"{traffic.num_answered - before} answers meanwhile"


def slow_database(ground: Ground, traffic: Traffic, rng: random.Random) -> str:
    """Freeze the database most of the time, so that it runs for a tenth of the time, in slices."""
    before = traffic.num_answered
    end_s = time.monotonic() + AWAY_S
    while time.monotonic() < end_s:
        with ground.postgres.frozen():
            time.sleep(0.45)
        time.sleep(0.05)
    return f"{traffic.num_answered - before} answers meanwhile"


def wait(ground: Ground, traffic: Traffic, rng: random.Random) -> None:
    traffic.more_answers(100)


DRILLS = (
    Drill("gateway killed", "the other one serves, what had begun is cut", under_load(kill_gateway, allowed=BEGUN)),
    Drill("gateway frozen", "nothing is lost: its requests wait or are cut", under_load(freeze_gateway, allowed=BEGUN)),
    Drill("engine killed", "its replica takes over", under_load(kill_engine, allowed=BEGUN, num_replicas=2)),
    Drill("engine frozen", "its replica takes over", under_load(freeze_engine, allowed=BEGUN, num_replicas=2)),
    Drill("only engine killed", "refused with 503 until it is back", under_load(kill_engine, allowed=BEGUN)),
    Drill("power lost", "what journals kept is billed by the next", under_load(kill_everything, allowed=BEGUN)),
    Drill("database killed", "no request fails: journals bridge it", under_load(kill_database)),
    Drill("database frozen", "requests go on for 15 s", under_load(freeze_database)),
    Drill("database away", "requests go on for 15 s", under_load(take_database_away)),
    Drill("database slow", "requests go on at a tenth of its speed", under_load(slow_database)),
    Drill("clocks jump", "an hour to and fro each second changes nothing", under_load(wait, gateways=JUMPING)),
)
