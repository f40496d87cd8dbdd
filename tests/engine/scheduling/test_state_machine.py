"""No token is lost, repeated or read from the wrong block, whatever arrives, aborts or runs out of memory.

Requests of several tenants and of both bands share prompts, adapters (of which new versions appear), choices, drafts
that are often wrong, and far too little memory; each must get exactly what it gets alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from hashlib import blake2b
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from engine.config.cache_layout import CacheLayout
from engine.lora.layer import LoadedAdapter
from engine.lora.pool import AdapterPool
from engine.protocol import BatchTerms, Delta, Final, GenerateRequest, Grammar, SamplingParams, StepOutputs
from engine.scheduling.block_manager import BlockManager
from engine.scheduling.cache.state_slots import StateSlots
from engine.scheduling.limits import BatchLimits, Limits
from engine.scheduling.matcher_time import STEP_S
from engine.scheduling.scheduler import Scheduler
from engine.sequence import Chunk, ChunkResult, ChunkStates, Plan, Status
from tests.engine.scheduling.scheduler_model import (
    EOS,
    VOCAB,
    CountingMatcher,
    ExpectedAnswer,
    HashingRunner,
    Windows,
    expected_choice,
    expected_embedding,
    expected_prompt_logprobs,
)

BLOCK_SIZE = 4
MAX_MODEL_LEN = 60
LIMITS = Limits(
    max_num_seqs=5,
    max_batched_tokens=9,
    max_waiting=6,
    max_model_len=MAX_MODEL_LEN,
    vocab_size=VOCAB,
    eos_token_ids=frozenset({EOS}),
    token_bytes=1,
)
STEPS_PER_EXAMPLE = 50
CI_STEPS = 10_000
FULL_STEPS = 1_000_000


class LoadsAtOnce(Executor):
    """An executor that runs each load before `submit` returns; the pool still learns of a load at its next
    `arrivals`."""

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(function(*args, **kwargs))
        return future


class Oracle:
    """A drafter that proposes the tokens that a request will get, up to one that depends on where the draft starts."""

    def __init__(self, texts: Callable[[], list[list[int]]]) -> None:
        self._texts = texts

    def propose(self, token_ids: list[int], max_tokens: int) -> tuple[int, ...]:
        for text in self._texts():
            if text[: len(token_ids)] == token_ids:
                drafts = text[len(token_ids) : len(token_ids) + max_tokens]
                return tuple((token + (token % 3 == 0)) % VOCAB for token in drafts)
        return ()


class LiveRequest(msgspec.Struct):
    """A running request, with the expected and the actual output of each choice."""

    request: GenerateRequest
    expected: list[ExpectedAnswer]
    shown: list[list[int]]
    """The tokens of each choice that deltas have brought."""
    counted: list[int]
    """The number of completion tokens of each choice by its last delta."""
    kept: list[int | None]
    ended: set[int] = msgspec.field(default_factory=set)
    """The indexes of choices that are over."""

    @property
    def num_alive(self) -> int:
        return len(self.expected) - len(self.ended)

    @property
    def can_error(self) -> bool:
        return any(expected.reason == "error" for expected in self.expected)


# Alike but for their first block: a block is its tokens and everything before them.
TEXT = [blake2b(bytes([i])).digest()[0] % VOCAB for i in range(36)]
PROMPTS = [TEXT, [*TEXT[-BLOCK_SIZE:], *TEXT[BLOCK_SIZE:]]]
prompts = st.builds(
    lambda base, length, tail: PROMPTS[base][:length] + tail,
    st.integers(0, 1),
    st.sampled_from((0, 8, 13, 20, 36)),
    st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=4),
)


class SchedulerMachine(RuleBasedStateMachine):
    num_followed = 0  # rows of steps that were launched ahead, over all examples
    num_snapshots = 0  # chunks that began with a snapshot
    num_beside = 0  # steps beside one that pauses
    num_batch = num_given_up = 0  # rows of the batch band; above zero if any of these gave its blocks up

    make_runner = HashingRunner

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1.0
        self.slots = AdapterPool(
            lambda digest: LoadedAdapter(digest, {}, num_bytes=1),
            max_adapters=2,
            wake=lambda: None,
            clock=lambda: self.now_s,
            executor=LoadsAtOnce(),
        )
        self.use_memory(per_table=15, num_drafts=3)
        self.live: dict[str, LiveRequest] = {}
        self.compiling: list[str] = []
        self.num_arrived = 0
        self.versions = [0, 0, 0]

    @initialize(
        per_table=st.sampled_from((15, 40)),
        num_drafts=st.sampled_from((0, 3)),
        share=st.sampled_from((0.0, 0.02, 0.3)),
        switch=st.sampled_from((0, 0, 19)),
        windows=st.sampled_from(((None,), (None,), (2,), (7,), (16,), (None, 7), (None, 2, 2), (2, 16), (None, 6, 16))),
        num_slots=st.sampled_from((0, 0, 2, 4, 12)),
        batched=st.sampled_from((9, 5)),
    )
    def use_memory(
        self,
        per_table: int,
        num_drafts: int,
        share: float = 0.02,
        switch: int = 0,
        windows: Windows = (None,),
        num_slots: int = 0,
        batched: int = 9,
    ) -> None:
        """Set the memory: few blocks make preemptions and evictions, many let prefixes be found again.

        per_table: the blocks for each block table, where its window needs no fewer. switch: the length beyond which a
        sequence has another rotation. windows: for each block table the tokens that a position sees. num_slots: the
        number of slots for states; 0: the model has no states. A model with states has no drafts, and no windows.
        batched: the most tokens of a step; a prompt of more than two steps and a window takes blocks while it is
        computed.
        share: the guaranteed share of batch work. num_drafts: the most drafts of a step.
        """
        num_drafts, windows = (0, (None,)) if num_slots else (num_drafts, windows)
        self.switch, self.windows, self.batched = switch, windows, batched
        states = StateSlots(num_slots) if num_slots else None
        layout, num_ahead = CacheLayout(windows), 2 * batched
        reserves = layout.reserves(num_ahead, BLOCK_SIZE)
        num_blocks = sum(per_table if most is None else min(per_table, most) for most in reserves)
        self.blocks = BlockManager(num_blocks, BLOCK_SIZE, layout, states, num_ahead)
        limits = msgspec.structs.replace(
            LIMITS,
            max_batched_tokens=batched,
            num_draft_tokens=num_drafts,
            batch=BatchLimits(share=share),
            length_switch=switch,
        )
        self.scheduler = Scheduler(
            self.blocks, self.slots, limits, lambda: self.now_s, make_drafter=lambda _: Oracle(self.texts)
        )
        self.runner = self.make_runner(num_blocks, BLOCK_SIZE, self.slots.adapter, windows)
        self.flight: tuple[Plan, list[ChunkResult]] | None = None
        self.paused: Plan | None = None
        self.run_paused: Callable[[], list[ChunkResult]] = list

    def texts(self) -> list[list[int]]:
        return [[*live.request.prompt_token_ids, *e.produced] for live in self.live.values() for e in live.expected]

    @rule(
        prompt=prompts,
        max_tokens=st.integers(1, 20),
        min_share=st.sampled_from((0.0, 0.5, 1.0)),
        stop=st.sampled_from(((), (3, 11))),
        ignore_eos=st.booleans(),
        adapter=st.sampled_from((None, None, None, None, 0, 1, 2)),
        tenant=st.sampled_from("aaabc"),
        n=st.sampled_from((1, 1, 1, 2, 3)),
        kind=st.sampled_from(("", "", "", "grammar", "rated", "rated only", "mean", "last", "penalized")),
        batch=st.sampled_from((None, None, BatchTerms(), BatchTerms(-10.0), BatchTerms(4_000.0))),
    )
    def arrive(
        self,
        prompt: list[int],
        max_tokens: int,
        min_share: float,
        stop: tuple[int, ...],
        ignore_eos: bool,
        adapter: int | None,
        tenant: str,
        n: int,
        kind: str,
        batch: BatchTerms | None,
    ) -> None:
        if kind in ("rated only", "mean", "last"):
            max_tokens, n = 0, 1
        sampling = SamplingParams(
            max_tokens,
            min_tokens=int(max_tokens * min_share),
            stop_token_ids=stop,
            ignore_eos=ignore_eos,
            num_prompt_logprobs=0 if kind.startswith("rated") else None,
            grammar=Grammar("regex", "x") if kind == "grammar" else None,
            presence_penalty=0.5 if kind == "penalized" else 0.0,
        )
        name = f"r{self.num_arrived}"
        digest = "" if adapter is None else f"{adapter}v{self.versions[adapter]}"
        weight = {"a": 0.5, "b": 1.0, "c": 4.0}[tenant]
        pooling = kind if kind in ("mean", "last") else None
        request = GenerateRequest(name, prompt, sampling, tenant, digest, n, pooling, weight, batch=batch)
        band = [live for live in self.live.values() if (live.request.batch is None) == (batch is None)]
        num_alive = sum(live.num_alive for live in band)
        num_mine = sum(live.num_alive for live in band if live.request.tenant == tenant)
        num_free = 5 + (6 if batch is None else LIMITS.max_batch_waiting) - num_alive - n
        error = self.scheduler.add(request, seed=self.num_arrived)
        if error is not None:
            assert error.code == "queue_full" and num_free < max(0, num_mine + n - 5)
            assert error.retry_after_s is not None and 1 <= error.retry_after_s <= 30
            return
        assert num_free >= max(0, num_mine + n - 5)
        expected = [expected_choice(request, self.num_arrived + index, self.switch, self.windows) for index in range(n)]
        self.live[name] = LiveRequest(request, expected, [[] for _ in expected], [0] * n, [None] * n)
        self.num_arrived += 1
        if kind == "grammar":
            self.compiling.append(name)

    @rule(adapter=st.integers(0, 2))
    def new_version(self, adapter: int) -> None:
        self.versions[adapter] += 1

    @rule(adapter=st.integers(0, 2))
    def unload(self, adapter: int) -> None:
        """Unload an adapter: running requests keep it, and it is loaded again for waiting ones."""
        self.slots.unload(f"{adapter}v{self.versions[adapter]}")

    @precondition(lambda self: self.compiling)
    @rule()
    def compiled(self) -> None:
        group = self.scheduler.find(self.compiling.pop(0))
        if group is not None:
            self.scheduler.set_matchers(group, CountingMatcher)

    @rule(
        times=st.integers(1, 4),
        ahead=st.booleans(),
        slow=st.booleans(),
        pauses=st.sampled_from((False, True, True, True)),
    )
    def steps(self, times: int, ahead: bool, slow: bool, pauses: bool) -> None:
        for _ in range(times):
            self.step(ahead, slow, pauses)

    @precondition(lambda self: {live.request.batch is not None for live in self.live.values()} == {True})
    @rule(prompt=prompts, tenant=st.sampled_from("abc"), adapter=st.sampled_from((None, 0)), times=st.integers(1, 4))
    def interrupt(self, prompt: list[int], tenant: str, adapter: int | None, times: int) -> None:
        """Have batch work that is alone pause for an interactive request.

        adapter: the number of the request's adapter; None: the base. times: the number of steps after its arrival.
        """
        self.step(ahead=False, pauses=True)
        self.arrive(prompt, 6, 0.5, (3, 11), False, adapter, tenant, 1, "", None)
        self.steps(times, ahead=False, slow=False, pauses=True)

    def step(self, ahead: bool, slow: bool = False, pauses: bool = False) -> None:
        """Launch the next step.

        ahead: plan before the results of the last step are taken, and launch before that as well, unless `slow`.
        pauses: a step of batch work alone pauses, and one that does so goes on pausing.
        """
        ahead = ahead and not pauses and self.paused is None  # a device works ahead, or its steps pause
        if not ahead:
            self.land(self.flight)
            self.flight = None
        if self.paused is not None and not (pauses and all(chunk.sequence.is_alive for chunk in self.paused.chunks)):
            self.end_pause()
        self.now_s += 0.1
        for arrival in self.slots.arrivals():
            if not self.scheduler.waiting_for(arrival.key):
                self.slots.withdraw(arrival.key)
        plan = self.scheduler.schedule(self.paused)
        if self.paused is not None:
            type(self).num_beside += bool(plan)
            assert not any(chunk.sequence.is_batch for chunk in plan.chunks)
        assert all(chunk.sequence.status is Status.RUNNING for chunk in plan.chunks)
        assert plan.num_tokens <= self.batched
        assert len(plan.chunks) <= LIMITS.max_num_seqs
        assert all(chunk.num_tokens == 1 + len(chunk.drafts) <= 1 + 3 for chunk in plan.decodes)
        assert not any(chunk.drafts for chunk in plan.prefills)
        assert not any(
            c.drafts and (c.sequence.matcher or c.sequence.request.sampling.presence_penalty) for c in plan.chunks
        )
        matchers = [c.sequence.matcher for c in plan.chunks if c.samples and c.sequence.matcher]
        assert sum(matcher.expected_cost_s for matcher in matchers) < STEP_S + CountingMatcher.expected_cost_s
        used = [bool(chunk.sequence.request.adapter) for chunk in plan.decodes]
        assert used == sorted(used, reverse=True)
        assert ahead or not any(chunk.follows for chunk in plan.chunks)
        if slow:
            self.land(self.flight)
            self.flight, plan = None, plan.alive
        before, self.flight = self.flight, None
        if plan and pauses and plan.is_batch:
            self.paused, self.run_paused = plan, self.runner.begin(plan)
            self.scheduler.launched(plan)
        elif plan:
            self.flight = plan, self.runner.run(plan)
            self.scheduler.launched(plan)
        elif self.paused is not None:
            self.end_pause()
        self.scheduler.note_step(plan, 0.004 + 0.002 * plan.num_tokens)
        type(self).num_batch += sum(chunk.sequence.is_batch for chunk in plan.chunks)
        type(self).num_given_up += self.scheduler.totals.batch_preemptions
        type(self).num_snapshots += sum(
            chunk.states is not None and chunk.states.source not in (None, chunk.states.slot) for chunk in plan.chunks
        )
        type(self).num_followed += sum(chunk.follows for chunk in plan.chunks)
        self.land(before)
        if self.paused is not None and self.scheduler.batch_is_in_the_way:
            self.land(self.flight)
            self.flight = None
            self.end_pause()

    def end_pause(self) -> None:
        """Compute the step that pauses, after those that were launched since, and take its results."""
        assert self.paused is not None and self.flight is None
        plan, self.paused = self.paused, None
        self.land((plan, self.run_paused()))

    def land(self, flight: tuple[Plan, list[ChunkResult]] | None) -> None:
        if flight is not None:
            self._take(self.scheduler.commit(*flight))

    @precondition(lambda self: self.live)
    @rule(data=st.data(), keep=st.none() | st.integers(0, 30), one=st.booleans())
    def abort(self, data: st.DataObject, keep: int | None, one: bool) -> None:
        live = self.live[data.draw(st.sampled_from(sorted(self.live)))]
        name, adapter = live.request.request_id, live.request.adapter
        index = data.draw(st.integers(0, live.request.n - 1)) if one else None
        aborted = range(live.request.n) if index is None else [index]
        final = self.scheduler.abort(name, keep, index)
        for choice in aborted:
            if keep is not None:
                live.kept[choice] = min(keep, live.counted[choice])
        live.ended.update(aborted)
        assert (final is not None) == (len(live.ended) == live.request.n)
        if final is None:
            return
        self._check_usage(live, final)
        assert final.finish_reason == ("abort" if keep is None else "stop")
        assert self.scheduler.abort(name, None) is None
        if adapter and not self.scheduler.waiting_for(adapter):
            self.slots.withdraw(adapter)
        del self.live[name]

    @invariant()
    def whole(self) -> None:
        self.scheduler.check_integrity()
        self.slots.check_integrity(self.scheduler.num_adapter_users)

    def teardown(self) -> None:
        """Check that all requests left finish: nobody waits forever."""
        while self.compiling:
            self.compiled()
        for _ in range(2000):
            if not self.live:
                break
            self.step(ahead=bool(self.num_arrived % 2))
            self.scheduler.check_integrity()
        assert not self.live
        assert self.scheduler.num_running == self.scheduler.num_waiting == 0
        assert self.blocks.num_free == self.blocks.num_blocks
        states = self.blocks.states
        assert states is None or states.num_free == states.num_slots
        self.slots.check_integrity(num_users=0)

    def _take(self, outputs: StepOutputs) -> None:
        for delta in outputs.deltas:
            self._take_delta(delta)
        for final in outputs.finals:
            live = self.live.pop(final.request_id)
            self._check_usage(live, final)
            if final.error is not None:
                assert live.can_error and final.error.code == "invalid_request"
                continue
            if live.request.pooling is not None:  # no delta: the embedding is all there is
                live.ended.add(0)
                assert final.embedding is not None
                ours = np.frombuffer(final.embedding, "<f4")
                np.testing.assert_allclose(ours, expected_embedding(live.request, self.switch, self.windows), rtol=1e-5)
            assert live.ended == set(range(live.request.n))
            assert final.finish_reason in {expected.reason for expected in live.expected}

    def _take_delta(self, delta: Delta) -> None:
        live = self.live[delta.request_id]
        expected = live.expected[delta.index]
        assert delta.index not in live.ended
        is_first = not live.counted[delta.index]
        num_new = delta.num_completion_tokens - live.counted[delta.index]
        live.counted[delta.index] = delta.num_completion_tokens
        live.shown[delta.index] += delta.token_ids
        assert live.shown[delta.index] == expected.shown[: len(live.shown[delta.index])]
        assert num_new == len(delta.token_ids) + (delta.finish_reason == "stop" and expected.shown != expected.produced)
        if live.request.sampling.num_prompt_logprobs is not None and not delta.index and is_first:
            assert delta.prompt_logprobs == expected_prompt_logprobs(live.request, self.switch, self.windows)
        else:
            assert delta.prompt_logprobs is None
        if delta.finish_reason is not None:
            assert (live.shown[delta.index], delta.finish_reason) == (expected.shown, expected.reason)
            live.ended.add(delta.index)
        else:
            assert len(live.shown[delta.index]) < len(expected.produced)

    def _check_usage(self, live: LiveRequest, final: Final) -> None:
        usage = final.usage
        kept = [c if k is None else min(c, k) for c, k in zip(live.counted, live.kept, strict=True)]
        if final.error is None:
            assert usage.completion_tokens == sum(kept)
            assert usage.completion_tokens + usage.discarded_tokens == sum(live.counted)
        num_prompt_tokens = len(live.request.prompt_token_ids)
        assert usage.prompt_tokens in ((0, num_prompt_tokens) if not any(live.counted) else (num_prompt_tokens,))
        assert usage.cached_tokens % BLOCK_SIZE == 0 and usage.cached_tokens <= max(usage.prompt_tokens - 1, 0)
        assert 0 <= usage.accepted_draft_tokens <= usage.draft_tokens
        assert 0 <= usage.adapter_wait_ms <= usage.queue_ms + 1e-6


def test_whatever_happens_each_request_gets_exactly_its_own_tokens(full: bool) -> None:
    """With --full the test runs in slices, each of which prints its seed; FIRST_SEED is the seed of the first slice."""
    first = int(os.environ.get("FIRST_SEED", "0"))
    for number in range(first, first + (FULL_STEPS // CI_STEPS if full else 1)):
        print(f"seed {number}", flush=True)
        machine = type("Slice", (SchedulerMachine,), {})
        run_slice(seed(number)(machine))
        assert min(machine.num_followed, machine.num_batch, machine.num_given_up, machine.num_snapshots) > 0
        assert machine.num_beside > 0


def run_slice(machine: type[SchedulerMachine], phases: Iterable[Phase] = tuple(Phase)) -> None:
    """Run CI_STEPS steps of a state machine.

    phases: the phases of hypothesis to run.
    """
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=CI_STEPS // STEPS_PER_EXAMPLE,
            stateful_step_count=STEPS_PER_EXAMPLE,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=phases,
        ),
    )


class ForgetsSnapshots(HashingRunner):
    """A faulty runner that starts from a sequence's own state slot where it should start from a snapshot."""

    def go_on(self, chunk: Chunk, states: ChunkStates) -> None:
        self._states.setdefault(states.slot, b"")
        source = None if states.source is None else states.slot
        super().go_on(chunk, msgspec.structs.replace(states, source=source))


class TakesNoSnapshots(HashingRunner):
    """A faulty runner that never writes the slots of snapshots."""

    def go_on(self, chunk: Chunk, states: ChunkStates) -> None:
        for _, slot in states.snapshots:
            self._states.setdefault(slot, b"")
        super().go_on(chunk, msgspec.structs.replace(states, snapshots=()))


@pytest.mark.parametrize("runner", [ForgetsSnapshots, TakesNoSnapshots])
def test_a_state_that_is_not_restored_or_not_kept_is_found(runner: type[HashingRunner]) -> None:
    machine = type("Mutant", (SchedulerMachine,), {"make_runner": runner})
    with pytest.raises(AssertionError, match="another state"):
        run_slice(seed(0)(machine), (Phase.generate,))
