"""The scheduler in virtual time: a step takes one unit by default, tokens mean nothing, service is measured outside."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from engine.protocol import BatchTerms, GenerateRequest, SamplingParams, StepOutputs
from engine.scheduling.block_manager import BlockManager
from engine.scheduling.limits import BatchLimits, Limits
from engine.scheduling.scheduler import Scheduler
from engine.sequence import Chunk, ChunkResult, Plan, SampledToken

BLOCK_SIZE = 16
TOKEN_BYTES = 10


class InstantSlots:
    """Adapter slots that never run out; a load takes one step and moves `load_bytes`."""

    def __init__(self, load_bytes: int) -> None:
        self.load_bytes = load_bytes
        self._resident: set[str] = set()
        self._loading: set[str] = set()

    @property
    def resident(self) -> frozenset[str]:
        return frozenset(self._resident)

    def is_resident(self, digest: str) -> bool:
        return digest in self._resident

    def request(self, digest: str, *, for_batch: bool = False) -> bool:
        if digest not in self._resident:
            self._loading.add(digest)
        return digest in self._resident

    def acquire(self, digest: str, *, for_batch: bool = False) -> int | None:
        return 0 if digest in self._resident else None

    def release(self, slot: int, *, for_batch: bool = False) -> None:
        pass

    def is_reclaimed(self, slot: int) -> bool:
        return False

    def arrivals(self) -> set[str]:
        arrived, self._loading = self._loading, set()
        self._resident |= arrived
        return arrived


class Simulator:
    """A scheduler with a clock of its own and tenants that send requests.

    service: by tenant, what `fairness` charges a tenant for, before weights.
    most_running: the largest sum of prompt and max_tokens over the sequences that ran at once.
    ahead: whether a step's results are taken after the next step was launched.
    seconds_of: returns how long a step takes.
    landed: the outputs of the step whose results were taken last.
    plan: the last step.
    hurry: the factor by which the scheduler's clock is faster than the simulator's.
    """

    def __init__(
        self,
        num_blocks: int,
        max_num_seqs: int,
        max_batched_tokens: int,
        load_bytes: int = 0,
        *,
        ahead: bool = False,
        seconds_of: Callable[[Plan], float] = lambda plan: 1.0,
        batch: BatchLimits = BatchLimits(),  # noqa: B008
    ) -> None:
        self.now = 1.0
        self.hurry = 1.0
        self._ahead = ahead
        self._seconds_of = seconds_of
        self._flights: list[Plan] = []
        self.plan = Plan([], [])
        self._slots = InstantSlots(load_bytes)
        limits = Limits(
            max_num_seqs=max_num_seqs,
            max_batched_tokens=max_batched_tokens,
            max_waiting=10_000,
            max_model_len=num_blocks * BLOCK_SIZE,
            vocab_size=1 << 20,
            eos_token_ids=frozenset(),
            token_bytes=TOKEN_BYTES,
            batch=batch,
        )
        self.blocks = BlockManager(num_blocks, BLOCK_SIZE)
        self.scheduler = Scheduler(self.blocks, self._slots, limits, clock=lambda: self.now * self.hurry)
        self.service: dict[str, float] = defaultdict(float)
        self.outstanding: dict[str, int] = defaultdict(int)
        self.ttfts: dict[str, list[float]] = defaultdict(list)
        self.most_running = 0
        self.landed = StepOutputs()
        self._sent: dict[str, float] = {}
        self._started: set[str] = set()
        self._num_sent = 0

    def send(
        self,
        tenant: str,
        prompt: int,
        output: int,
        adapter: str = "",
        weight: float = 1.0,
        batch: BatchTerms | None = None,
    ) -> str:
        """Send a request with a prompt of `prompt` tokens and return its id. No two prompts begin alike.

        output: the tokens of the answer. adapter: the key of an adapter; "": the base. weight: the tenant's weight.
        batch: the terms of a request in the batch band; None: it is interactive.
        """
        self._num_sent += 1
        name = f"{tenant}/{self._num_sent}"
        sampling = SamplingParams(output)
        token_ids = [self._num_sent % (1 << 20)] * prompt
        request = GenerateRequest(name, token_ids, sampling, tenant, adapter, weight=weight, batch=batch)
        assert self.scheduler.add(request, seed=0) is None
        self.outstanding[tenant] += 1
        self._sent[name] = self.now
        return name

    @property
    def resident(self) -> frozenset[str]:
        return self._slots.resident

    def step(self) -> None:
        for digest in self._slots.arrivals():
            waiting = self.scheduler.waiting_for(digest)
            waiting[0].adapter_load_bytes = self._slots.load_bytes
        self.plan = plan = self.scheduler.schedule()
        for chunk in plan.chunks:
            self._note_start(chunk)
        self._note_running(plan)
        seconds = self._seconds_of(plan)
        self.scheduler.launched(plan)
        self.now += seconds
        self._flights.append(plan)
        while len(self._flights) > self._ahead:
            self._land(self._flights.pop(0))
        self.scheduler.note_step(plan, seconds)

    def _land(self, plan: Plan) -> None:
        outputs = self.scheduler.commit(
            plan, [ChunkResult([SampledToken(1)] if c.samples else []) for c in plan.chunks]
        )
        self.landed = outputs
        for delta in outputs.deltas:
            tenant = delta.request_id.partition("/")[0]
            self.service[tenant] += 2.0
            if delta.num_completion_tokens == 1:
                self.ttfts[tenant].append(self.now - self._sent[delta.request_id])
        for final in outputs.finals:
            self.outstanding[final.request_id.partition("/")[0]] -= 1

    def _note_start(self, chunk: Chunk) -> None:
        sequence = chunk.sequence
        if sequence.request_id not in self._started:
            self._started.add(sequence.request_id)
            moved = sequence.adapter_load_bytes / TOKEN_BYTES
            self.service[sequence.request.tenant] += sequence.num_prompt_tokens - chunk.first + moved

    def _note_running(self, plan: Plan) -> None:
        running = {id(chunk.sequence): chunk.sequence.request for chunk in plan.chunks}
        total = sum(len(r.prompt_token_ids) + r.sampling.max_tokens for r in running.values())
        self.most_running = max(self.most_running, total)


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return float(ordered[min(int(share * len(ordered)), len(ordered) - 1)])
