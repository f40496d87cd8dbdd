"""Batch work fills what interactive requests leave of each step, and gives it back in the next; in virtual time."""

from __future__ import annotations

import random
from collections import defaultdict

import msgspec
import pytest

from engine.scheduling.step_time import StepCosts, StepLoad, longest_alone_s
from engine.sequence import Plan, Status
from tests.engine.scheduling.band_simulation import CPU, CPU_BAND, GPU, GPU_BAND, MAX_NUM_SEQS, Machine, Sizes, keep_fed
from tests.engine.scheduling.fairness_simulator import percentile

MACHINES = {"gpu": (GPU, GPU_BAND), "cpu": (CPU, CPU_BAND)}
TOLERANCE = 1.02
"""The factor by which a step may exceed its bound, since the engine has to learn the cost of steps."""

Plans = list[list[tuple[str, int, int, bool]]]


def interactive_plans(seed: int, *, beside_batch: bool) -> tuple[Plans, int]:
    """Return the interactive work of each step, and the number of batch tokens generated.

    No two prompts are alike, so that no request finds a cached prefix of another.
    """
    chance, other = random.Random(seed), random.Random(seed)
    num_blocks, max_num_seqs, max_batched_tokens = (
        other.choice((30, 60, 200)),
        other.randint(2, 6),
        other.choice((64, 256)),
    )
    machine = Machine(
        StepCosts(1e-3, 1e-6, 0.0, 0.0),
        msgspec.structs.replace(GPU_BAND, share=0.0, lengthening=10.0),
        num_blocks=num_blocks,
        max_num_seqs=max_num_seqs,
        max_batched_tokens=max_batched_tokens,
        load_bytes=500,
    )
    plans: Plans = []
    for step in range(250):
        if step % 50 < 12:
            for tenant in ("a", "b"):
                while machine.outstanding[tenant] < chance.choice((0, 1, 4)):
                    adapter = f"{tenant}{chance.randint(0, 3)}" if chance.random() < 0.3 else ""
                    machine.send(tenant, chance.randint(1, 100), chance.randint(1, 40), adapter)
        while beside_batch and machine.num_batch < 8:
            machine.send_batch("c", other.randint(1, 100), other.randint(1, 40))
        machine.step()
        machine.scheduler.check_integrity()
        own = [chunk for chunk in machine.plan.chunks if not chunk.sequence.is_batch]
        assert len(machine.plan.chunks) <= max_num_seqs and machine.plan.num_tokens <= max_batched_tokens
        plans.append([(c.sequence.request.tenant, c.sequence.num_prompt_tokens, c.first, c.samples) for c in own])
    return plans, machine.scheduler.totals.batch_generated_tokens


def test_every_step_computes_of_interactive_requests_what_it_would_without_batch_work(full: bool) -> None:
    num_batch_tokens = 0
    for seed in range(300 if full else 4):
        alone, none = interactive_plans(seed, beside_batch=False)
        beside, some = interactive_plans(seed, beside_batch=True)
        assert none == 0
        assert beside == alone, f"seed {seed}"
        num_batch_tokens += some
    assert num_batch_tokens > 300


@pytest.mark.parametrize("name", MACHINES)
def test_steps_are_lengthened_by_a_share_beside_interactive_requests_and_bounded_alone(name: str) -> None:
    costs, band = MACHINES[name]
    machine = Machine(costs, msgspec.structs.replace(band, share=0.0), noise=0.05)
    chance = random.Random(0)
    while len(machine.seconds_alone) < 150 or len(machine.seconds_beside) < 150:
        keep_fed(machine, ["a", "b"], Sizes(), chance)
        if machine.now % 6 < 1 and machine.outstanding["t"] < 6:
            machine.send("t", *Sizes().draw(chance))
        machine.step()
    bound_s = longest_alone_s(costs, band, MAX_NUM_SEQS)
    assert percentile(machine.seconds_alone[20:], 0.99) <= TOLERANCE * bound_s
    ratios = [whole_s / own_s for whole_s, own_s in machine.seconds_beside[20:]]
    assert percentile(ratios, 0.99) <= 1 + TOLERANCE * band.lengthening + 0.02
    assert sum(ratios) / len(ratios) > 1 + band.lengthening / 3, "room is used"


class Checked(Machine):
    """A machine that notes the steps with sequences that hold no blocks any more."""

    num_faulty_steps = 0

    def _seconds(self, plan: Plan) -> float:
        self.num_faulty_steps += any(chunk.sequence.status is not Status.RUNNING for chunk in plan.chunks)
        return super()._seconds(plan)


@pytest.mark.parametrize("seed", range(3))
def test_work_that_gives_up_its_blocks_to_older_owed_work_is_not_computed_in_the_same_step(seed: int) -> None:
    costs, band = StepCosts(1e-3, 1e-6, 0.0, 0.0), msgspec.structs.replace(GPU_BAND, share=0.8)
    machine = Checked(costs, band, num_blocks=30, max_num_seqs=16, max_batched_tokens=64)
    chance = random.Random(seed)
    for _ in range(400):
        while machine.outstanding["a"] < 2:
            machine.send("a", chance.randint(1, 8), chance.randint(100, 200))
        while machine.num_batch < 6:
            machine.send_batch("c", chance.randint(1, 40), chance.randint(30, 60))
        machine.step()
    assert machine.scheduler.totals.batch_recomputed_tokens > 0
    assert machine.num_faulty_steps == 0


@pytest.mark.parametrize("name", MACHINES)
def test_an_interactive_request_that_arrives_is_part_of_the_next_step(name: str) -> None:
    costs, band = MACHINES[name]
    machine = Machine(costs, band, num_blocks=300)
    chance = random.Random(1)
    own_s = costs.seconds(StepLoad(1, 100, 100))
    for arrival in range(30):
        for _ in range(10):
            keep_fed(machine, ["a"], Sizes(), chance)
            machine.step()
        arrived_s = machine.now - chance.random() * machine.seconds_alone[-1]  # within the last step
        request_id = machine.send("t", 100, 1)
        machine.step()
        assert any(chunk.sequence.request_id == request_id and chunk.samples for chunk in machine.plan.prefills)
        bound_s = longest_alone_s(costs, band, MAX_NUM_SEQS)
        assert machine.now - arrived_s <= TOLERANCE * (bound_s + (1 + band.lengthening) * own_s) or arrival < 3
        machine.scheduler.check_integrity()


def run(machine: Machine, seconds: float, chance: random.Random, *, num_interactive: int = 0) -> tuple[float, float]:
    """Keep the band fed for some seconds; return the service a second, and the sequences of an average step.

    num_interactive: the number of interactive requests that run all the time.
    """
    start_s, before, rows = machine.now, sum(machine.service_of.values()), list[int]()
    while machine.now < start_s + seconds:
        keep_fed(machine, ["a", "b"], Sizes(), chance)
        while machine.outstanding["t"] < num_interactive:
            machine.send("t", *Sizes().draw(chance))
        machine.step()
        rows.append(len(machine.plan.chunks))
    return (sum(machine.service_of.values()) - before) / (machine.now - start_s), sum(rows) / len(rows)


@pytest.mark.parametrize(("num_blocks", "least"), [(1_500, 0.9), (1_000, 0.75)], ids=["enough memory", "little memory"])
def test_bursts_are_filled_up_with_batch_work_of_which_little_is_computed_again(
    num_blocks: int, least: float, full: bool
) -> None:
    """Half of the time as many interactive requests come as can run. Together with batch work they are served nearly
    as fast as endless batch work alone, whose steps are full again 0.2 s after a burst."""
    machine = Machine(GPU, GPU_BAND, num_blocks=num_blocks)
    chance = random.Random(2)
    run(machine, 3, chance)
    alone, rows_alone = run(machine, 2, chance)
    start_s, before = machine.now, sum(machine.service_of.values())
    for _ in range(6 if full else 2):
        run(machine, 1, chance, num_interactive=64)
        while machine.outstanding["t"]:
            machine.step()
        run(machine, 0.2, chance)
        _, rows = run(machine, 0.8, chance)
        assert rows >= 0.95 * rows_alone or num_blocks < 1_500
    together = (sum(machine.service_of.values()) - before) / (machine.now - start_s)
    totals = machine.scheduler.totals
    assert together >= least * alone
    assert totals.batch_recomputed_tokens <= 0.02 * (totals.batch_prompt_tokens + totals.batch_generated_tokens)


@pytest.mark.parametrize(("name", "least"), [("gpu", 0.97), ("cpu", 0.92)])
def test_batch_work_alone_is_as_fast_as_the_bound_of_its_steps_allows(name: str, least: float) -> None:
    """Interactive requests have no bound: on a GPU the same requests' steps are no longer than batch work's; on a
    CPU they are, since prompts take longer there."""
    costs, band = MACHINES[name]
    chance = random.Random(3)
    sizes = [Sizes().draw(chance) for _ in range(120)]
    seconds = []
    for send in (Machine.send, Machine.send_batch):
        machine = Machine(costs, band)
        for prompt, output in sizes:
            send(machine, "a", prompt, output)
        while machine.outstanding["a"]:
            machine.step()
        seconds.append(machine.now)
    assert seconds[0] >= least * seconds[1]


@pytest.mark.parametrize("limit", ["places", "tokens", "memory", "time"])
@pytest.mark.parametrize("share", [0.02, 0.1])
def test_under_endless_interactive_load_batch_work_gets_its_share(limit: str, share: float, full: bool) -> None:
    costs = CPU if limit == "time" else GPU
    machine = Machine(
        costs,
        msgspec.structs.replace(GPU_BAND, share=share, lengthening=0.0 if limit == "time" else 0.15),
        num_blocks=200 if limit == "memory" else 2_000,
        max_num_seqs=12 if limit == "places" else 64,
        max_batched_tokens=128 if limit == "tokens" else 2_048,
    )
    chance = random.Random(4)
    for _ in range(4_000 if full else 250):
        while machine.outstanding["t"] < 80:
            machine.send("t", *Sizes().draw(chance))
        while machine.num_batch < 10:
            machine.send_batch("a", *Sizes().draw(chance))
        machine.step()
        machine.scheduler.check_integrity()
    gained = machine.service_of[True] / sum(machine.service_of.values())
    lost = machine.scheduler.totals.batch_recomputed_tokens
    assert gained >= 0.9 * share
    assert lost <= 0.02 * machine.service_of[True]
    assert limit == "time" or gained <= 0.5


@pytest.mark.parametrize("is_busy", [False, True], ids=["alone", "beside interactive requests"])
def test_twenty_batches_of_one_tenant_get_what_one_of_another_gets(is_busy: bool) -> None:
    """Shares are measured in service while all tenants have work, also between one with completions and one with
    prompts alone."""
    machine = Machine(GPU, GPU_BAND)
    chance = random.Random(5)
    sizes = {"many": Sizes(), "one": Sizes(100, 120), "embeds": Sizes(300, 10)}
    got: dict[str, float] = defaultdict(float)
    before: dict[str, float] = {}
    while machine.now < 7:
        for tenant, num in (("many", 160), ("one", 60), ("embeds", 60)):
            while machine.outstanding[tenant] < num:
                machine.send_batch(tenant, *sizes[tenant].draw(chance))
        while is_busy and machine.outstanding["t"] < 30:
            machine.send("t", *Sizes().draw(chance))
        machine.step()
        if not before and machine.now > 2:
            before = dict(machine.service)
    for tenant in sizes:
        got[tenant] = machine.service[tenant] - before[tenant]
    assert max(got.values()) <= 1.1 * min(got.values()), got
