"""Copies of requests on spare room delay no request: an engine computes little of their prompts in one step."""

from __future__ import annotations

import pytest

from engine.scheduling.scheduler import BACKGROUND_TOKENS, BACKGROUND_WEIGHT
from gateway.domain.billing.book import SHADOW_TIER
from gateway.pipeline.preparation import TIER_WEIGHTS
from tests.engine.scheduling.fairness_simulator import Simulator
from tests.engine.scheduling.shadow_simulation import simulate

MOST_LONGER = 0.03


@pytest.mark.parametrize(("rate", "least_copied"), [(40, 0.15), (110, 0.0)])
def test_copies_move_the_time_to_the_first_token_of_requests_by_3_percent_at_most(
    rate: float, least_copied: float, full: bool
) -> None:
    for seed in range(4 if full else 1):
        seconds = 60 if full else 30 if rate < 100 else 15
        alone = simulate(rate, seconds, max_running=0, seed=seed)
        beside = simulate(rate, seconds, max_running=4, seed=seed)
        assert len(beside.ttfts_s) == len(alone.ttfts_s)
        assert beside.p99_s <= (1 + MOST_LONGER) * alone.p99_s, f"seed {seed}: {alone.p99_s} to {beside.p99_s}"
        assert beside.num_copies >= least_copied * len(beside.ttfts_s)


def test_a_step_has_few_prompt_tokens_of_all_background_requests_and_as_many_as_fit_of_others() -> None:
    simulator = Simulator(num_blocks=400, max_num_seqs=8, max_batched_tokens=256)
    assert TIER_WEIGHTS[SHADOW_TIER] <= BACKGROUND_WEIGHT < min(TIER_WEIGHTS["flex"], TIER_WEIGHTS["default"])
    for _ in range(3):
        simulator.send("copies", 200, 4, weight=TIER_WEIGHTS[SHADOW_TIER])
    simulator.step()
    assert simulator.scheduler.totals.prompt_tokens == BACKGROUND_TOKENS
    simulator.send("tenant", 200, 4)
    simulator.step()
    assert simulator.scheduler.totals.prompt_tokens == 2 * BACKGROUND_TOKENS + 200
    for _ in range(60):
        simulator.step()
        simulator.scheduler.check_integrity()
    assert not any(simulator.outstanding.values()), "background requests come to their ends"
    assert simulator.scheduler.totals.prompt_tokens == 800
