"""A machine in virtual time whose steps last as long as their load says, with interactive tenants beside batch work.

`GPU` is an 8B model on an H100, `CPU` the demo model in int8 on two cores (`engine/LOG.md`).
"""

from __future__ import annotations

import random
from collections import defaultdict

import msgspec

from engine.protocol import BatchTerms
from engine.scheduling.fairness import DECODE_COST
from engine.scheduling.limits import BatchLimits
from engine.scheduling.step_time import StepCosts, StepLoad
from engine.sequence import Plan
from tests.engine.scheduling.fairness_simulator import Simulator

GPU = StepCosts(7e-3, 40e-6, 22e-6, 30e-9)
CPU = StepCosts(4e-3, 0.75e-3, 0.8e-3, 2e-6)
GPU_BAND = BatchLimits()
CPU_BAND = BatchLimits(step_s=0.050, efficiency=0.95, num_one_row_steps=2.0)
MAX_NUM_SEQS = 64


class Machine(Simulator):
    """A simulated machine.

    noise: the share by which a step may be longer than its load says.
    seconds_beside: for each step with batch work beside interactive requests, its seconds, and those of its interactive
    requests alone.
    seconds_alone: the seconds of each step without interactive requests.
    """

    def __init__(
        self,
        costs: StepCosts,
        band: BatchLimits,
        *,
        num_blocks: int = 4_000,
        max_num_seqs: int = MAX_NUM_SEQS,
        max_batched_tokens: int = 2_048,
        noise: float = 0.0,
        ahead: bool = False,
        load_bytes: int = 0,
    ) -> None:
        self._costs = costs
        self._noise = noise
        self._chance = random.Random(0)
        super().__init__(
            num_blocks,
            max_num_seqs,
            max_batched_tokens,
            load_bytes,
            ahead=ahead,
            seconds_of=self._seconds,
            batch=band,
        )
        self.seconds_beside: list[tuple[float, float]] = []
        self.seconds_alone: list[float] = []
        self.service_of: dict[bool, float] = defaultdict(float)
        """Service of interactive requests (False) and batch work (True): computed prompt tokens, and twice the
        completion tokens."""
        self._num_batch = 0

    def send_batch(self, tenant: str, prompt: int, output: int, slack_s: float | None = None, adapter: str = "") -> str:
        """Send a request in the batch band; return its id.

        prompt, output: the tokens of the prompt and of the answer. slack_s: the seconds for which the work can rest;
        None: it has no deadline. adapter: the key of an adapter; "": the base.
        """
        return self.send(tenant, prompt, output, adapter, batch=BatchTerms(slack_s))

    @property
    def num_batch(self) -> int:
        """The number of choices of the batch band in the engine."""
        return self.scheduler.num_batch_running + self.scheduler.num_batch_waiting

    def wait(self, seconds: float) -> None:
        """Advance the clock while the engine is idle."""
        self.now += seconds

    def _seconds(self, plan: Plan) -> float:
        return self._costs.seconds(StepLoad.of(plan.decodes, plan.prefills)) * (
            1 + self._chance.uniform(0, self._noise)
        )

    def _note_running(self, plan: Plan) -> None:
        super()._note_running(plan)
        for chunk in plan.chunks:
            cost = 0.0 if chunk in plan.decodes else float(chunk.num_tokens)
            self.service_of[chunk.sequence.is_batch] += cost + DECODE_COST * chunk.samples
        interactive = StepLoad.of(*_interactive(plan))
        whole = StepLoad.of(plan.decodes, plan.prefills)
        if not interactive.num_rows:
            self.seconds_alone.append(self._costs.seconds(whole))
        elif whole.num_rows > interactive.num_rows:
            self.seconds_beside.append((self._costs.seconds(whole), self._costs.seconds(interactive)))


def _interactive(plan: Plan) -> tuple[list, list]:  # type: ignore[type-arg]
    decodes, prefills = ([c for c in chunks if not c.sequence.is_batch] for chunks in (plan.decodes, plan.prefills))
    return decodes, prefills


class Sizes(msgspec.Struct, frozen=True):
    """Upper bounds on the tokens of prompts and completions, below which sizes are drawn."""

    prompt: int = 200
    output: int = 80

    def draw(self, chance: random.Random) -> tuple[int, int]:
        """Draw the number of tokens of a prompt and of its completion."""
        return tuple(chance.randint(max(most // 10, 1), most) for most in (self.prompt, self.output))  # type: ignore[return-value]


def keep_fed(machine: Machine, tenants: list[str], sizes: Sizes, chance: random.Random) -> None:
    """Send batch work of each tenant until the engine has as many choices as its scheduler wants."""
    wanted = machine.scheduler.num_batch_wanted
    while machine.num_batch < wanted:
        for tenant in tenants:
            machine.send_batch(tenant, *sizes.draw(chance))
