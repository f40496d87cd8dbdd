"""The simulation behind `make bench-balance`, and the promises that it makes about our own policy."""

from __future__ import annotations

import itertools
import json

import pytest

from gateway.bench.balance.__main__ import main
from gateway.bench.balance.compare import compare
from gateway.bench.balance.model import Arrival, ReplicaSnapshot, Simulation, SimulationParameters, arrivals
from gateway.bench.balance.policies import POLICIES, LoraScorer, OurPolicy, RoundRobin
from gateway.bench.balance.references import belady, best_static_placement
from gateway.domain.balancing.replica import Asked, ReplicaLoad

SMALL = SimulationParameters(replicas=4, adapters=40, slots=4, places=16, load=4, requests=2_000, gateways=2)


def test_64_replicas_with_10_000_adapters_hit_as_often_as_promised_and_stay_level() -> None:
    world = SimulationParameters(requests=50_000)
    row = compare(OurPolicy, world, arrivals(world), best_static_placement(world))
    assert row.ratio_to_static >= 0.9
    assert row.busiest <= 1.25
    assert max(row.moved_by_one_more, row.moved_by_one_less) <= 2 / 64
    assert row.pick_us_p50 <= 20


def test_no_policy_hits_more_than_the_cache_that_knows_the_future() -> None:
    requests = arrivals(SMALL)
    most = belady(SMALL, requests)
    for kind in POLICIES:
        assert compare(kind, SMALL, requests, best_static_placement(SMALL)).hit_rate <= most, kind.name


def test_a_seed_reproduces_a_run_and_every_request_goes_to_one_replica() -> None:
    def simulation() -> Simulation:
        return Simulation(
            SMALL, [OurPolicy([f"replica-{number}" for number in range(4)], 2, seed) for seed in range(2)]
        )

    first, again = simulation(), simulation()
    assert first.run(arrivals(SMALL)) == again.run(arrivals(SMALL))
    assert sum(replica.num_requests for replica in first.replicas.values()) == SMALL.requests


def test_an_adapter_is_loaded_once_while_it_is_used_and_again_after_it_was_evicted() -> None:
    world = SimulationParameters(replicas=1, adapters=3, slots=1, gateways=1)
    times_s = itertools.count(1_000, 1_000)
    asked = [Arrival(next(times_s), key, 1.0) for key in "-aabab"]
    outcome = Simulation(world, [RoundRobin(["replica-0"], 1, 0)]).run(asked)
    assert outcome.requests == 3 and outcome.loads == 3


def test_the_best_static_placement_copies_what_is_too_hot_for_one_replica() -> None:
    world = SimulationParameters(replicas=4, adapters=4, slots=1, zipf=1.0)
    assert world.weights()[0] == pytest.approx(0.48)
    assert best_static_placement(world) == pytest.approx(0.48 + 0.24 + 0.16), "copies: 2, 1, 1"
    assert best_static_placement(SimulationParameters(replicas=4, adapters=4, slots=2)) == pytest.approx(1.0)


def test_belady_evicts_what_is_asked_for_last() -> None:
    world = SimulationParameters(replicas=1, slots=2)
    asked = [Arrival(float(i), key, 1.0) for i, key in enumerate("----abcab-")]
    assert belady(world, asked) == 1 / 5, "c takes the place of b"


@pytest.mark.parametrize(
    ("running", "waiting", "score"),
    [({"a"}, set(), 1.0), ({"b"}, {"a"}, 0.8), ({"b", "c"}, {"a"}, 0.6), ({"b", "c"}, {"d"}, 0.0)],
)
def test_the_lora_scorer_has_its_published_scores(running: set[str], waiting: set[str], score: float) -> None:
    scorer = LoraScorer(["replica-0"], 1, 0)
    load = ReplicaLoad(id="replica-0", adapter_slots=3)
    scorer.update(ReplicaSnapshot(load, frozenset(running), frozenset(waiting)), 0.0)
    assert scorer.score("replica-0", Asked("a")) == score


def test_the_program_prints_the_references_and_a_row_of_each_policy(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--replicas", "4", "--adapters", "20", "--slots", "4", "--requests", "400", "--load", "4"]
    assert main([*arguments, "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["policy"] for row in rows[2:]] == [kind.name for kind in POLICIES]
    assert main(arguments) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + 2 + len(POLICIES)
