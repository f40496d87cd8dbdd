"""Tenants beside copies of their requests, in virtual time: how much a copy delays the first token of others.

The scheduler is the engine's; steps last as long as those of an 8B model on an H100 (`engine/LOG.md`): 7 ms, and 22 µs
a row of a prompt. Copies begin once their requests have ended, `max_running` at a time and while the engine has room to
spare by its last heartbeat, as in `gateway.pipeline.shadows`: under an account of their own, with the weight of their
tier.

    .venv/bin/python -m tests.engine.scheduling.shadow_simulation
"""

from __future__ import annotations

import itertools
import random
from collections import deque

import msgspec

from engine.protocol import HEARTBEAT_INTERVAL_S
from engine.sequence import Plan
from gateway.domain.billing.book import SHADOW_TIER
from gateway.pipeline.preparation import TIER_WEIGHTS
from gateway.pipeline.shadows import MAX_WAITING, SPARE_SHARE
from tests.engine.scheduling.fairness_simulator import Simulator

STEP_S, ROW_S = 0.007, 22e-6
NUM_TENANTS, NUM_SEQS = 4, 64


class _Timed(Simulator):
    """A simulator that records the duration of its last step."""

    step_s = 0.0

    def _note_running(self, plan: Plan) -> None:
        super()._note_running(plan)
        rows = sum(chunk.num_tokens for chunk in plan.chunks if chunk.num_tokens > 1)
        self.step_s = STEP_S + ROW_S * rows


class Outcome(msgspec.Struct):
    """The measured times of requests and their copies."""

    ttfts_s: list[float] = []
    """Seconds to the first token of each request, copies excluded."""
    num_copies: int = 0
    """The number of copies that began."""

    @property
    def p99_s(self) -> float:
        return sorted(self.ttfts_s)[int(0.99 * len(self.ttfts_s))]


def simulate(rate: float, seconds: float, *, max_running: int, spare: float = SPARE_SHARE, seed: int = 0) -> Outcome:
    """Return the outcome of requests of which each is copied.

    rate: requests a second of all tenants.
    max_running: the most copies at one time.
    spare: copies begin while less than this share of the engine's places is taken.
    """
    simulator = _Timed(num_blocks=8_000, max_num_seqs=NUM_SEQS, max_batched_tokens=2_048)
    chance = random.Random(seed)
    arrivals: deque[tuple[float, str, int, int]] = deque()
    at_s = 0.0
    while at_s < seconds:
        at_s += chance.expovariate(rate)
        arrivals.append((at_s, f"t{chance.randrange(NUM_TENANTS)}", chance.randint(20, 300), chance.randint(10, 80)))
    now_s, heard_s, is_spare, outcome = 0.0, 0.0, True, Outcome()
    sent_s: dict[str, float] = {}
    first_s: dict[str, float] = {}
    sizes: dict[str, tuple[int, int]] = {}
    waiting: deque[tuple[int, int]] = deque()
    running: set[str] = set()
    while arrivals or sent_s:
        if not (sent_s or running):
            now_s = max(now_s, arrivals[0][0])
        while arrivals and arrivals[0][0] <= now_s:
            arrived_s, tenant, prompt, output = arrivals.popleft()
            name = simulator.send(tenant, prompt, output)
            sent_s[name], sizes[name] = arrived_s, (prompt, output)
        if now_s - heard_s >= HEARTBEAT_INTERVAL_S:
            heard_s, is_spare = now_s, len(sent_s) + len(running) < spare * NUM_SEQS
        while waiting and is_spare and len(running) < max_running:
            prompt, output = waiting.popleft()
            running.add(simulator.send("shadow", prompt, output, weight=TIER_WEIGHTS[SHADOW_TIER]))
            outcome.num_copies += 1
        simulator.step()
        now_s += simulator.step_s
        for delta in simulator.landed.deltas:
            if delta.num_completion_tokens == 1 and delta.request_id in sent_s:
                first_s[delta.request_id] = now_s - sent_s[delta.request_id]
        for final in simulator.landed.finals:
            running.discard(final.request_id)
            if sent_s.pop(final.request_id, None) is not None and len(waiting) < MAX_WAITING:
                waiting.append(sizes[final.request_id])
    outcome.ttfts_s = list(first_s.values())
    return outcome


def main() -> None:
    """Print a table of the outcomes at several loads."""
    print("requests/s  seed  at once  spare below  p99 TTFT alone, ms  beside copies, ms  difference  copied")
    for rate, seed in itertools.product((40, 80, 110), range(2)):
        alone = simulate(rate, 60, max_running=0, seed=seed)
        for at_once, spare in ((4, 99.0), (4, SPARE_SHARE)):
            beside = simulate(rate, 60, max_running=at_once, spare=spare, seed=seed)
            print(
                f"{rate:>10}  {seed:>4}  {at_once:>7}  {spare:>11}  {1e3 * alone.p99_s:>18.1f}  "
                f"{1e3 * beside.p99_s:>17.1f}  {beside.p99_s / alone.p99_s - 1:>+10.1%}  "
                f"{beside.num_copies / len(beside.ttfts_s):>6.0%}",
                flush=True,
            )


if __name__ == "__main__":
    main()
