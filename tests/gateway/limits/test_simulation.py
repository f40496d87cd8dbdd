"""Whatever fails, limits hold and every slice is given back: hundreds of simulations, each drawn from its own seed.

`make long-limits` runs 100,000 simulations; the variable FIRST_SEED sets the seed to begin with.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from engine.protocol import Usage
from gateway.domain.limits.exchange import Snapshot
from gateway.domain.limits.holdings import Holdings, Row
from gateway.domain.limits.limit import NS_PER_S, Limit
from gateway.domain.limits.work import PromptWork, RequestWork
from tests.gateway.limits.simulation import Event, Simulation, World

CI_SEEDS, FULL_SEEDS = 250, 100_000
SLICE = 125
MUTANT_SEEDS = 60


def test_limits_hold_and_slices_return_whatever_fails(full: bool) -> None:
    first, num_seeds = int(os.environ.get("FIRST_SEED", "0")), FULL_SEEDS if full else CI_SEEDS
    slices = [range(start, start + SLICE) for start in range(first, first + num_seeds, SLICE)]
    with ProcessPoolExecutor(os.cpu_count(), get_context("fork")) as pool:
        for seeds, failure in zip(slices, pool.map(first_failure, slices), strict=True):
            assert failure is None, failure
            if full:
                print(f"seeds {seeds.start} to {seeds.stop - 1}", flush=True)


def first_failure(seeds: range) -> str | None:
    for seed in seeds:
        try:
            Simulation(seed).run()
        except AssertionError as error:
            return f"seed {seed}: {error}"
    return None


class ForgetsLeases(World):
    """A faulty database that grants amounts which other gateways already hold."""

    def snapshot(self, gateway: str, limit_ids: list[str]) -> Snapshot:
        told = super().snapshot(gateway, limit_ids)
        accounts = {
            key: type(each)(each.window_start, each.max, each.settled, 0) for key, each in told.accounts.items()
        }
        return Snapshot(told.now_ns, told.num_gateways, accounts)


class SettlesTwice(World):
    """A faulty database that counts each event twice in the accounts."""

    def settle(self, event: Event) -> None:
        super().settle(event)
        super().settle(event)


class ForgetsAtOnce(World):
    """A faulty database that regards a gateway as dead as soon as its heartbeat is late."""

    def beat(self, gateway: str) -> bool:
        for other, heard_ns in list(self.heard_ns.items()):
            if other != gateway and self.now_ns - heard_ns > 2 * NS_PER_S:
                self.forget(other)
        return super().beat(gateway)


class KeepsWhatItGaveBack(Holdings):
    """Faulty holdings that return more to the database than they stop using."""

    def give_back(self) -> None:
        for key in self.overfull & self.slices.keys():
            each = self.slices[key]
            if each.is_overfull:
                spare = each.spare
                each.unwritten -= spare
                each.held -= spare
                self.dirty.add(key)
        super().give_back()


class SettlesBeforeTheLedger(Holdings):
    """Faulty holdings that free an ended request's amounts before the ledger has its usage."""

    def ended(self, request_id: str, usage: Usage) -> None:
        super().ended(request_id, usage)
        for each, spent in self._unwritten.pop(Row(request_id, True), ()):
            each.unwritten -= spent


class ForgetsOneOfABatch(Holdings):
    """Faulty holdings that miss that the last row of a batch was written."""

    def written(self, rows: Iterable[Row]) -> None:
        super().written(list(rows)[:-1])


class BelievesWhatItSaw(Holdings):
    """Faulty holdings that treat the usage seen of a lost engine's request as final."""

    def seen(self, request_id: str, usage: Usage) -> None:
        super().seen(request_id, usage)
        self.give_up(request_id)


@pytest.mark.parametrize("world", [ForgetsLeases, SettlesTwice, ForgetsAtOnce])
def test_a_database_that_errs_is_caught(world: type[World]) -> None:
    assert _is_caught(world, Holdings)


@pytest.mark.parametrize(
    "holdings", [KeepsWhatItGaveBack, SettlesBeforeTheLedger, ForgetsOneOfABatch, BelievesWhatItSaw]
)
def test_a_gateway_that_errs_is_caught(holdings: type[Holdings]) -> None:
    assert _is_caught(World, holdings)


def _is_caught(world: type[World], holdings: type[Holdings]) -> bool:
    for seed in range(MUTANT_SEEDS):
        try:
            Simulation(seed, world, holdings).run()
        except AssertionError:
            return True
    return False


def test_three_requests_a_minute_can_all_be_used_over_twenty_gateways() -> None:
    simulation = Simulation(1, num_gateways=20, fates=(1, 0, 0))
    world = simulation.world
    world.limits = {"few": Limit("few", "org", "a", None, None, "requests", "minute", 3, True)}
    for number, gateway in enumerate(simulation.gateways):
        gateway.arrive("a", RequestWork((PromptWork(f"req_{number}", 1, 1, 1),)))
        while gateway.waiting or gateway.finish is not None:
            simulation.transact(gateway)
        simulation.adopt()
    assert len(simulation.running) == 3
    assert sum(len(gateway.refused) for gateway in simulation.gateways) == 17
    simulation.drain()
