"""Agents, engines and gateways of several hosts die and freeze, cables between them are cut, the database goes away.

After each fault: no replica has been run twice, no answer was wrong, the ledger is exact, gateways that could reach a
ready replica have answered within `BACK_S`, and none has kept an engine in its picture that it had not heard of for
three heartbeats.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import pairwise, takewhile

import msgspec
import pytest

from engine.protocol import DEAD_AFTER_S
from tests.faults.pools.host_faults import KINDS, FaultKind
from tests.faults.pools.hosts import ENGINE_HOSTS, GATEWAY_HOSTS, Hosts, Reply, running_hosts
from tests.faults.pools.stations import CannotLay, Stations, laid_stations
from tests.seeds import SharedSeeds

NUM_FAULTS, NUM_FAULTS_FULL = 3, 300
NUM_SITES, NUM_SITES_FULL = 1, 5
"""Installations of their own that have faults side by side: most of a fault is silence and its end."""
BACK_S = 15.0
PICTURE_S = DEAD_AFTER_S
SLACK_S = 1.0
"""Seconds by which the end of an old picture may be noticed late, on a busy machine."""
QUIET_S = 1.0
"""Seconds of load without a fault between two faults."""

FAILURES = ("cut off", "ended after its text had begun", "no answer", "stream ", "503 ", "cut")
"""The beginnings of outcomes that are allowed for requests during a fault, besides answers."""


UNREAD = ("502 backend_failed",)
"""The errors that may also come from a gateway that stood still: its engine ends a request whose tokens nobody
reads."""


class Effects(msgspec.Struct):
    """The measured effects of one kind of fault."""

    count: int = 0
    """The number of faults of the kind."""
    longest_s: float = 0.0
    """The longest time in which a gateway gave no answer that should have given one."""
    whole_s: float = 0.0
    """The longest time in seconds from the end of a fault until everything was as before."""
    picture_s: float = 0.0
    """The longest time for which a gateway had an engine in its picture that it did not hear of."""
    outcomes: Counter[str] = msgspec.field(default_factory=Counter)


@pytest.fixture
def networks(full: bool) -> Iterator[list[Stations]]:
    with ExitStack() as stack:
        try:
            names = (*ENGINE_HOSTS, *GATEWAY_HOSTS)
            number = NUM_SITES_FULL if full else NUM_SITES
            laid = [stack.enter_context(laid_stations(*names)) for _ in range(number)]
        except CannotLay as reason:
            pytest.skip(f"no networks of its own: {reason}")
        yield laid


async def test_faults_of_hosts_double_no_replica_and_no_bill_and_stop_no_gateway(
    networks: list[Stations], full: bool
) -> None:
    table: dict[str, Effects] = {kind.name: Effects() for kind in KINDS}
    seeds = SharedSeeds(NUM_FAULTS, NUM_FAULTS_FULL, full=full)

    async def site(stations: Stations) -> None:
        async with running_hosts(stations) as hosts:
            async with hosts.watched(seeds.first):
                await hosts.settled()
                for seed in seeds:
                    kind, rng = KINDS[seed % len(KINDS)], random.Random(seed)
                    lasts_s = kind.duration_s(rng) if full else max(kind.lasts_s[:2])
                    await _meet(hosts, kind, lasts_s, rng, table[kind.name], f"seed {seed}")
                    seeds.done(seed)
                    print(f"  {seeds}", flush=True)
            await hosts.check_whole_ledger()

    try:
        async with asyncio.TaskGroup() as sites:
            for stations in networks:
                sites.create_task(site(stations))
    finally:
        _print(table)
        print(seeds, flush=True)


async def _meet(hosts: Hosts, kind: FaultKind, lasts_s: float, rng: random.Random, seen: Effects, name: str) -> None:
    """Cause one fault, and check all promises about it.

    lasts_s: the seconds for which the fault lasts. name: the name of the fault in messages.
    """
    await asyncio.sleep(QUIET_S)
    first_reply, first_picture, begun_s = len(hosts.replies), len(hosts.pictures), time.monotonic()
    async with kind.begin(hosts, rng) as fault:
        await asyncio.sleep(lasts_s)
        healing_s = time.monotonic()
    over_s = time.monotonic()
    await hosts.settled()
    whole_s = time.monotonic() - over_s
    await asyncio.sleep(QUIET_S)
    now_s = time.monotonic()
    replies = hosts.replies[first_reply:]
    waits_s = [
        _longest_without(replies, number, over_s if number in fault.away else begun_s, now_s)
        for number in range(len(hosts.gateways))
    ]
    picture_s = max(
        (_kept_s(hosts, first_picture, each, fault.begun_s, healing_s) for each in fault.unheard), default=0.0
    )
    seen.count += 1
    seen.longest_s, seen.whole_s = max(seen.longest_s, *waits_s), max(seen.whole_s, whole_s)
    seen.picture_s = max(seen.picture_s, picture_s)
    seen.outcomes.update(reply.outcome for reply in replies)
    waits = " and ".join(f"{wait_s:.1f}" for wait_s in waits_s)
    what = f"{name}: {fault.what} for {lasts_s:g} s: {waits} s without answers, whole after {whole_s:.1f} s"
    print(f"{what}, picture {picture_s:.1f} s, {dict(Counter(reply.outcome for reply in replies))}", flush=True)
    surprises = [
        reply
        for reply in replies
        if not reply.outcome.startswith(("answered", *FAILURES, *(UNREAD if reply.gateway in fault.away else ())))
    ]
    assert not surprises, (what, surprises)
    assert max(waits_s) < BACK_S, what
    assert picture_s < PICTURE_S + SLACK_S, what
    hosts.check()
    await hosts.check_ledger()


def _longest_without(replies: Iterable[Reply], gateway: int, from_s: float, until_s: float) -> float:
    """Return the longest time in this span in which a gateway finished no answer.

    from_s, until_s: the ends of the span, in seconds of the monotonic clock.
    """
    ends = sorted(each.ended_s for each in replies if each.gateway == gateway and each.outcome == "answered")
    marks = [from_s, *(end_s for end_s in ends if end_s > from_s), until_s]
    return max(later - earlier for earlier, later in pairwise(marks))


def _kept_s(hosts: Hosts, first: int, gateway: int, begun_s: float, healing_s: float) -> float:
    """Return the time for which a gateway kept both engines in its picture, while it did not hear of one."""
    looks = [each for each in hosts.pictures[first:] if each.gateway == gateway and begun_s < each.at_s < healing_s]
    kept = takewhile(lambda each: each.num_ready > 1, looks)
    return max((each.at_s - begun_s for each in kept), default=0.0)


def _print(table: dict[str, Effects]) -> None:
    print("\n| fault | times | longest without answers, s | whole again, s | picture, s | outcomes |")
    print("|---|---|---|---|---|---|")
    for name, seen in table.items():
        if seen.count:
            outcomes = ", ".join(f"{count} {outcome}" for outcome, count in seen.outcomes.most_common())
            numbers = f"{seen.longest_s:.1f} | {seen.whole_s:.1f} | {seen.picture_s:.1f}"
            print(f"| {name} | {seen.count} | {numbers} | {outcomes} |")
