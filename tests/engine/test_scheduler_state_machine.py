"""No token is lost, repeated or read from the wrong block, whatever arrives, aborts or runs out of memory.

The runner is a stand-in that keeps, for each cache slot, the token written there, and derives the next token from the
whole prefix as read back through the block table: one foreign or stale block changes every later token.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many
from concurrent.futures import Executor, Future
from hashlib import blake2b
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.adapter_pool import AdapterPool
from engine.block_manager import BlockManager
from engine.layers.lora import LoadedAdapter
from engine.protocol import GenerateRequest, SamplingParams, StepOutputs
from engine.scheduler import Scheduler
from engine.sequence import ChunkResult, Plan, Sampled, Sequence

BLOCK_SIZE = 4
NUM_BLOCKS = 12
VOCAB = 50
EOS = 7
CI_STEPS = 10_000


def next_token(prefix: Many[int]) -> int:
    return int.from_bytes(blake2b(bytes(prefix), digest_size=4).digest(), "big") % VOCAB


def expected_completion(request: GenerateRequest) -> tuple[list[int], str]:
    """What the request must get alone: tokens shown and the finish reason."""
    tokens = list(request.prompt_token_ids)
    shown: list[int] = []
    sampling = request.sampling
    for count in range(1, sampling.max_tokens + 1):
        token = next_token(tokens)
        tokens.append(token)
        if count > sampling.min_tokens and (
            token in sampling.stop_token_ids or (token == EOS and not sampling.ignore_eos)
        ):
            return shown, "stop"
        shown.append(token)
    return shown, "length"


class HashingRunner:
    """The cache is a list of tokens by slot."""

    def __init__(self) -> None:
        self.cache = [-1] * (NUM_BLOCKS * BLOCK_SIZE)

    def run(self, plan: Plan) -> list[ChunkResult]:
        results: list[ChunkResult] = []
        for chunk in plan.chunks:
            slots = [block * BLOCK_SIZE + i for block in chunk.sequence.block_table for i in range(BLOCK_SIZE)]
            for position in range(chunk.first, chunk.first + chunk.num_tokens):
                self.cache[slots[position]] = chunk.sequence.token_ids[position]
        for chunk in plan.chunks:
            slots = [block * BLOCK_SIZE + i for block in chunk.sequence.block_table for i in range(BLOCK_SIZE)]
            prefix = [self.cache[slot] for slot in slots[: chunk.first + chunk.num_tokens]]
            results.append(ChunkResult([Sampled(next_token(prefix))] if chunk.samples else []))
        return results


class LoadsAtOnce(Executor):
    """Runs what is submitted before it returns; the pool still learns of it at its next look."""

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(function(*args, **kwargs))
        return future


class SchedulerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.slots = AdapterPool(
            lambda digest: LoadedAdapter(digest, {}, num_bytes=1),
            max_adapters=2,
            wake=lambda: None,
            clock=lambda: self.now_s,
            executor=LoadsAtOnce(),
        )
        self.blocks = BlockManager(NUM_BLOCKS, BLOCK_SIZE)
        self.scheduler = Scheduler(
            self.blocks,
            self.slots,
            max_num_seqs=5,
            max_batched_tokens=9,
            max_waiting=6,
            max_model_len=NUM_BLOCKS * BLOCK_SIZE,
            vocab_size=VOCAB,
            eos_token_ids=(EOS,),
            clock=lambda: self.now_s,
        )
        self.runner = HashingRunner()
        self.requests: dict[str, GenerateRequest] = {}
        self.shown: dict[str, list[int]] = {}
        self.counted: dict[str, int] = {}

    @rule(
        prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=20),
        max_tokens=st.integers(1, 25),
        min_share=st.sampled_from((0.0, 0.5, 1.0)),
        stop=st.sampled_from(((), (3, 11), (20,))),
        ignore_eos=st.booleans(),
        adapter=st.sampled_from(("", "0", "1", "2", "3")),
    )
    def arrive(
        self,
        prompt: list[int],
        max_tokens: int,
        min_share: float,
        stop: tuple[int, ...],
        ignore_eos: bool,
        adapter: str,
    ) -> None:
        name = f"r{len(self.requests)}"
        sampling = SamplingParams(
            max_tokens, min_tokens=int(max_tokens * min_share), stop_token_ids=stop, ignore_eos=ignore_eos
        )
        request = GenerateRequest(name, prompt, sampling, tenant="t", adapter=adapter)
        error = self.scheduler.add(Sequence(request, list(prompt), seed=0, arrived_s=self.now_s))
        if error is not None:
            assert error.code == "queue_full" and len(self.shown) == 5 + 6 and error.retry_after_s
            return
        self.requests[name] = request
        self.shown[name], self.counted[name] = [], 0

    @rule()
    def step(self) -> None:
        self.now_s += 0.1
        for arrival in self.slots.arrivals():
            if not self.scheduler.waiting_for(arrival.digest):
                self.slots.withdraw(arrival.digest)
        plan = self.scheduler.schedule()
        assert plan.num_tokens <= 9
        assert all(chunk.num_tokens == 1 for chunk in plan.decodes)
        used = [bool(chunk.sequence.request.adapter) for chunk in plan.decodes]
        assert used == sorted(used, reverse=True)
        self._take(self.scheduler.commit(plan, self.runner.run(plan)))

    @precondition(lambda self: self.shown)
    @rule(data=st.data(), keep=st.none() | st.integers(0, 30))
    def abort(self, data: st.DataObject, keep: int | None) -> None:
        name = data.draw(st.sampled_from(sorted(self.shown)))
        final = self.scheduler.abort(name, keep)
        assert final is not None
        produced = self.counted[name]
        assert final.usage.completion_tokens == (produced if keep is None else min(keep, produced))
        assert final.usage.completion_tokens + final.usage.discarded_tokens == produced
        assert self.scheduler.abort(name, None) is None
        adapter = self.requests[name].adapter
        if adapter and not self.scheduler.waiting_for(adapter):
            self.slots.withdraw(adapter)
        del self.shown[name]

    @invariant()
    def whole(self) -> None:
        self.scheduler.check_integrity()
        self.slots.check_integrity(self.scheduler.num_adapter_users)

    def teardown(self) -> None:
        """Whoever is left finishes: nobody waits forever."""
        for _ in range(2000):
            if not self.shown:
                break
            self.step()
            self.scheduler.check_integrity()
        assert not self.shown
        assert self.blocks.num_free == NUM_BLOCKS
        self.slots.check_integrity(num_users=0)

    def _take(self, outputs: StepOutputs) -> None:
        for delta in outputs.deltas:
            self.counted[delta.request_id] += 1
            assert delta.num_completion_tokens == self.counted[delta.request_id]
            self.shown[delta.request_id] += delta.token_ids
        for final in outputs.finals:
            shown, reason = expected_completion(self.requests[final.request_id])
            assert self.shown.pop(final.request_id) == shown
            assert final.finish_reason == reason
            assert final.usage.completion_tokens == self.counted[final.request_id]


SchedulerMachine.TestCase.settings = settings(
    max_examples=CI_STEPS // 50, stateful_step_count=50, deadline=None, derandomize=True
)
TestScheduler = SchedulerMachine.TestCase
