"""Which tokens the next step computes. Data in, plan out: no torch, no clock of its own, no sockets.

Continuous batching (Yu et al., 2022: Orca) with one token budget per step: sequences that decode come first, what is
left goes to prefill in chunks (Agrawal et al., 2024: Sarathi-Serve). Who is admitted, whose prompts go first and who
gives way is decided by the tenants' counters of service (see `engine.fairness`).

Memory. A sequence is admitted with blocks for all its tokens, if one more stays free for each that runs; only decoding
needs blocks later. When they run out the newest sequence of the running tenant with the highest counter is preempted:
it gives up its blocks, keeps its tokens and is computed again later.

Progress. Blocks run out only for a decode, which then emits a token in this step, or is itself the victim while others
go on: one alone always fits. Tokens are kept, so every preemption is paid for with a token or a prompt computed, and
as who keeps running is charged and who was preempted is not, the same tenant cannot stay the victim.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Many

import msgspec

from engine.block_manager import BlockManager
from engine.completion import NOT_A_NUMBER, take_result
from engine.drafter import PromptLookup
from engine.fairness import DECODE_COST, ServiceCounters
from engine.finish_rate import FinishRate
from engine.limits import Limits, check_request
from engine.protocol import (
    EngineError,
    Final,
    FinishReason,
    GenerateRequest,
    SamplingParams,
    StepOutputs,
    TenantStats,
)
from engine.request_group import RequestGroup, unit_embedding
from engine.running_set import AdapterSlots, RunningSet
from engine.sequence import Chunk, ChunkResult, Drafter, Matcher, Plan, Sequence, Status
from engine.waiting_queue import WaitingQueue

MAX_LOADS_PER_TENANT = 8  # so that who asks for many adapters does not keep others' waiting behind them
NO_SLOT = 1 << 30  # base rows sort behind every slot


class Totals(msgspec.Struct):
    """Counts since the start; prefix_* are prompt tokens, looked up and found, each request counted once."""

    preemptions: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0
    draft_tokens: int = 0
    accepted_draft_tokens: int = 0


class Scheduler:
    """Owns every request from its arrival to its final."""

    def __init__(
        self,
        blocks: BlockManager,
        adapters: AdapterSlots,
        limits: Limits,
        clock: Callable[[], float],
        make_drafter: Callable[[], Drafter] = PromptLookup,
    ) -> None:
        self._blocks = blocks
        self._adapters = adapters
        self._limits = limits
        self._clock = clock
        self._make_drafter = make_drafter
        self._counters = ServiceCounters()
        self._waiting = WaitingQueue(self._counters)
        self._running = RunningSet(blocks, adapters, self._counters)
        self._groups: dict[str, RequestGroup] = {}
        self._num_alive = 0
        self._finish_rate = FinishRate()
        self.totals = Totals()

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Choices that do not run, those held back by a grammar or their leader included."""
        return self._num_alive - len(self._running)

    @property
    def num_adapter_users(self) -> int:
        """Running sequences that hold an adapter slot."""
        return sum(sequence.adapter_slot is not None for sequence in self._running)

    def tenant_stats(self, max_tenants: int) -> dict[str, TenantStats]:
        """Of the tenants with the most choices here."""
        alive = [choice for group in self._groups.values() for choice in group.choices if choice.is_alive]
        num_running = Counter(choice.request.tenant for choice in self._running)
        num_alive = Counter(choice.request.tenant for choice in alive)
        return {
            tenant: TenantStats(num_running[tenant], count - num_running[tenant], self._counters.of(tenant))
            for tenant, count in num_alive.most_common(max_tenants)
        }

    # requests come and go

    def add(self, request: GenerateRequest, seed: int) -> EngineError | None:
        """Queue a request, its choice i drawing with seed + i; the error says why it can't be, and nothing is kept.

        One with a grammar waits for `set_matchers`.
        """
        limits = self._limits
        error = check_request(request, limits)
        if error is not None:
            return error
        if self._num_alive + request.n > limits.max_num_seqs + limits.max_waiting:
            retry_after_s = self._finish_rate.drain_s(len(self._groups), self._clock())
            return EngineError("queue_full", f"{self._num_alive} completions run or wait", retry_after_s)
        group = RequestGroup.of(request, seed, self._clock())
        self._groups[request.request_id] = group
        self._num_alive += request.n
        self._counters.arrive(request.tenant)
        if not group.compiling:
            self._queue_leader(group)
        return None

    def find(self, request_id: str) -> RequestGroup | None:
        return self._groups.get(request_id)

    def set_matchers(self, group: RequestGroup, make_matcher: Callable[[], Matcher]) -> None:
        """The grammar is compiled: the request may be admitted. Raises MatcherError, and nothing has changed."""
        matchers = [make_matcher() for _ in group.held]
        for choice, matcher in zip(group.held, matchers, strict=True):
            choice.matcher = matcher
        group.compiling = False
        self._queue_leader(group)

    def abort(self, request_id: str, num_kept_tokens: int | None, index: int | None = None) -> Final | None:
        """As `protocol.Abort`: the request's final if nothing of it goes on."""
        group = self._groups.get(request_id)
        if group is None or (index is not None and not 0 <= index < len(group.choices)):
            return None
        for choice in group.choices if index is None else [group.choices[index]]:
            if num_kept_tokens is not None:
                choice.num_kept_tokens = min(num_kept_tokens, choice.num_completion_tokens)
        self._end_choices(group, index)
        return None if group.num_alive else self._close(group, "abort" if num_kept_tokens is None else "stop")

    def fail(self, request_id: str, error: EngineError) -> Final | None:
        """End a request that can't go on; None when it has already ended."""
        group = self._groups.get(request_id)
        if group is None:
            return None
        self._end_choices(group)
        return self._close(group, "error", error)

    def waiting_for(self, digest: str) -> list[Sequence]:
        """Queued sequences that need this adapter, in order of arrival."""
        waiting = [sequence for sequence in self._waiting if sequence.request.adapter == digest]
        return sorted(waiting, key=lambda sequence: sequence.arrived_s)

    # steps

    def schedule(self) -> Plan:
        """The next step. Blocks for it are already handed out."""
        num_preemptions = self.totals.preemptions
        decoding, prefilling = self._continue_running()
        left = self._limits.max_batched_tokens - len(decoding)
        decodes: list[Chunk] = []
        for sequence in decoding:
            drafts = self._draft(sequence, left) if self._limits.num_draft_tokens else ()
            decodes.append(Chunk(sequence, sequence.num_computed, 1 + len(drafts), drafts))
            left -= len(drafts)
        prefills: list[Chunk] = []
        for sequence in prefilling:
            left = self._prefill(sequence, left, prefills)
        if self.totals.preemptions == num_preemptions:  # else who was just preempted would come straight back
            self._admit(left, prefills)
        return Plan(decodes, prefills)

    def commit(self, plan: Plan, results: Many[ChunkResult]) -> StepOutputs:
        """Take the step's results, in the order of plan.chunks."""
        outputs = StepOutputs([], [])
        for chunk, result in zip(plan.chunks, results, strict=True):
            if chunk.sequence.status is Status.RUNNING:  # else its request failed by another choice in this very step
                self._commit_chunk(chunk, result, outputs)
        return outputs

    def _commit_chunk(self, chunk: Chunk, result: ChunkResult, outputs: StepOutputs) -> None:
        sequence = chunk.sequence
        progress = take_result(chunk, result, self._limits.eos_token_ids)
        if progress.error is not None:
            self._fail_in_step(sequence.request_id, progress.error, outputs)
            return
        self._blocks.register(sequence)
        group = self._groups[sequence.request_id]
        if group.held and sequence.num_computed >= sequence.num_prompt_tokens:
            self._queue_held(group)
        if progress.num_new:
            self.totals.generated_tokens += progress.num_new
            self._counters.charge(sequence.request.tenant, DECODE_COST * progress.num_new / sequence.request.weight)
        if progress.delta is not None:
            sequence.first_token_s = sequence.first_token_s or self._clock()
            outputs.deltas.append(progress.delta)
        if progress.finish_reason is not None:
            self._finish(group, sequence, progress.finish_reason, outputs)

    # who runs

    def _continue_running(self) -> tuple[list[Sequence], list[Sequence]]:
        """Those that decode, with room for their next token, by adapter slot with the base last; those in their
        prompt, whose room was made at admission, by their tenants' counters. Oldest first among equals."""
        decoding: list[Sequence] = []
        prefilling: list[Sequence] = []
        num_preemptions = self.totals.preemptions
        for sequence in list(self._running):
            if sequence.status is not Status.RUNNING:
                continue
            if not sequence.is_decoding:
                prefilling.append(sequence)
            elif len(decoding) < self._limits.max_batched_tokens and self._make_room(sequence):
                decoding.append(sequence)
        if self.totals.preemptions != num_preemptions:
            decoding = [sequence for sequence in decoding if sequence.status is Status.RUNNING]
            prefilling = [sequence for sequence in prefilling if sequence.status is Status.RUNNING]
        decoding.sort(key=lambda s: NO_SLOT if s.adapter_slot is None else s.adapter_slot)
        prefilling.sort(key=lambda s: self._counters.of(s.request.tenant))
        return decoding, prefilling

    def _make_room(self, sequence: Sequence) -> bool:
        """A block for a decode's next token, preempting others; False if that was itself."""
        while not self._blocks.grow(sequence, len(sequence.token_ids)):
            victim = self._running.victim()
            self._running.leave(victim)
            victim.status = Status.WAITING
            victim.forget_prompt()
            self._waiting.push(victim)
            self.totals.preemptions += 1
            if victim is sequence:
                return False
        return True

    def _draft(self, sequence: Sequence, left: int) -> tuple[int, ...]:
        """Guesses for a decode's row, if it may speculate and budget and blocks are left for them.

        Not with penalties or a grammar: they depend on every token before, so most rows after a draft would be void.
        """
        sampling = sequence.request.sampling
        num_wanted = min(self._limits.num_draft_tokens, left, sampling.max_tokens - sequence.num_completion_tokens - 1)
        if num_wanted <= 0 or sampling.grammar is not None or _has_penalties(sampling):
            return ()
        if sequence.drafter is None:
            sequence.drafter = self._make_drafter()
        drafts = sequence.drafter.propose(sequence.token_ids, num_wanted)
        if not self._blocks.grow(sequence, len(sequence.token_ids) + len(drafts)):
            return ()
        self.totals.draft_tokens += len(drafts)
        return drafts

    def _prefill(self, sequence: Sequence, left: int, prefills: list[Chunk]) -> int:
        """Compute as much of a sequence as the budget allows; what is left of it."""
        num_tokens = min(sequence.num_uncomputed, left)
        if num_tokens:
            prefills.append(Chunk(sequence, sequence.num_computed, num_tokens))
            self.totals.prompt_tokens += num_tokens
        return left - num_tokens

    # who comes next

    def _admit(self, left: int, prefills: list[Chunk]) -> None:
        """Start waiting sequences. One that finds no memory holds the others up, else large ones would never start."""
        while left > 0 and self._waiting and len(self._running) < self._limits.max_num_seqs:
            candidates = self._waiting.candidates(self._first_ready)
            if not candidates:
                return
            sequence = candidates[0] if len(candidates) == 1 else max(candidates, key=self._num_reusable)
            if not self._running.start(sequence, _may_reuse(sequence)):
                return
            self._account_admission(sequence)
            left = self._prefill(sequence, left, prefills)

    def _first_ready(self, line: list[Sequence]) -> Sequence | None:
        """The first of a tenant's line whose adapter is there; for the first few of the others it is loaded."""
        asked: set[str] = set()
        for sequence in line:
            digest = sequence.request.adapter
            if not digest or self._adapters.is_resident(digest):
                return sequence
            sequence.adapter_wait_since_s = sequence.adapter_wait_since_s or self._clock()
            if digest not in asked and len(asked) < MAX_LOADS_PER_TENANT:
                asked.add(digest)
                self._adapters.request(digest)
        return None

    def _num_reusable(self, sequence: Sequence) -> int:
        return self._blocks.num_cached_tokens(sequence) if _may_reuse(sequence) else 0

    def _account_admission(self, sequence: Sequence) -> None:
        """What the sequence costs its tenant, once; and what the request's first admission tells."""
        request = sequence.request
        group = self._groups[request.request_id]
        smallest = self._waiting.smallest_counter()
        self._waiting.remove(sequence)
        cost = 0.0
        if not sequence.started_s:
            num_moved = sequence.adapter_load_bytes / self._limits.token_bytes
            cost = (sequence.num_uncomputed + num_moved) / request.weight
            now_s = self._clock()
            if not group.is_started:
                self._note_first_admission(group, sequence, now_s)
            sequence.started_s = now_s
        self._counters.admit(request.tenant, smallest, cost)

    def _note_first_admission(self, group: RequestGroup, sequence: Sequence, now_s: float) -> None:
        group.num_cached_tokens = sequence.num_computed
        if sequence.adapter_wait_since_s:
            group.adapter_wait_s = now_s - sequence.adapter_wait_since_s
        if _may_reuse(sequence):
            self.totals.prefix_query_tokens += sequence.num_prompt_tokens
            self.totals.prefix_hit_tokens += sequence.num_computed

    # who ends

    def _queue_leader(self, group: RequestGroup) -> None:
        self._waiting.push(group.held.pop(0))

    def _queue_held(self, group: RequestGroup) -> None:
        for choice in group.held:
            self._waiting.push(choice)
        group.held = []

    def _end_choices(self, group: RequestGroup, index: int | None = None) -> None:
        """All, or the one with this index. The last go first, so that no held one is queued just to end."""
        ended = [c for c in reversed(group.choices) if c.is_alive and index in (None, c.index)]
        for choice in ended:
            self._end(group, choice)

    def _end(self, group: RequestGroup, choice: Sequence) -> None:
        """Take a choice from wherever it is; if it led held ones, the next of them leads."""
        if choice.status is Status.RUNNING:
            self._running.leave(choice)
        elif choice in group.held:
            group.held.remove(choice)
        else:
            self._waiting.remove(choice)
        choice.status = Status.FINISHED
        group.num_alive -= 1
        self._num_alive -= 1
        if group.held and not group.compiling and len(group.held) == group.num_alive:
            self._queue_leader(group)

    def _finish(self, group: RequestGroup, choice: Sequence, reason: FinishReason, outputs: StepOutputs) -> None:
        """A choice has come to its end; with the last one the request is complete."""
        embedding = None
        if choice.pooled is not None:
            embedding = unit_embedding(choice.pooled)
            if embedding is None:
                self._fail_in_step(choice.request_id, EngineError("internal", NOT_A_NUMBER), outputs)
                return
        self._end(group, choice)
        if not group.num_alive:
            outputs.finals.append(self._close(group, reason, embedding=embedding))

    def _fail_in_step(self, request_id: str, error: EngineError, outputs: StepOutputs) -> None:
        final = self.fail(request_id, error)
        assert final is not None
        outputs.finals.append(final)

    def _close(
        self,
        group: RequestGroup,
        reason: FinishReason,
        error: EngineError | None = None,
        embedding: bytes | None = None,
    ) -> Final:
        now_s = self._clock()
        del self._groups[group.request.request_id]
        self._counters.leave(group.request.tenant)
        self._finish_rate.note(now_s)
        final = group.final(reason, now_s, error, embedding)
        self.totals.accepted_draft_tokens += final.usage.accepted_draft_tokens
        return final

    def check_integrity(self) -> None:
        """Run by tests after every step."""
        alive = [choice for group in self._groups.values() for choice in group.choices if choice.is_alive]
        held = [choice for group in self._groups.values() for choice in group.held]
        running, waiting = list(self._running), list(self._waiting)
        assert Counter(map(id, alive)) == Counter(map(id, [*running, *waiting, *held])), "a choice is lost or doubled"
        assert self._num_alive == len(alive)
        assert all(group.num_alive == sum(c.is_alive for c in group.choices) > 0 for group in self._groups.values())
        assert all(choice.status is Status.RUNNING for choice in running)
        assert all(choice.status is Status.WAITING and not choice.block_table for choice in [*waiting, *held])
        assert all(bool(s.request.adapter) == (s.adapter_slot is not None) for s in running)
        self._blocks.check_integrity(running)


def _may_reuse(sequence: Sequence) -> bool:
    """Whether the cached prefix may be skipped: not while every position of the prompt is asked for."""
    request = sequence.request
    wants_logprobs = request.sampling.num_prompt_logprobs is not None and not sequence.index
    return not (request.pooling == "mean" or (wants_logprobs and not sequence.num_completion_tokens))


def _has_penalties(sampling: SamplingParams) -> bool:
    return bool(sampling.presence_penalty or sampling.frequency_penalty) or sampling.repetition_penalty != 1.0
