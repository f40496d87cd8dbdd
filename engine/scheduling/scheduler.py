"""Decides which tokens the next step computes. Data in, plan out: no torch, no clock of its own, no sockets.

Continuous batching (Yu et al., 2022: Orca) with one token budget per step: sequences that decode come first, what is
left goes to prefill in chunks (Agrawal et al., 2024: Sarathi-Serve). The tenants' counters of service decide which
request is admitted, which prompts go first and which sequence gives way (see `engine.scheduling.fairness`).

Memory. A sequence is admitted with blocks for all its tokens, if one more stays free for each that runs; later, only
decoding needs blocks, and a prompt longer than a window, which takes new ones for those that it leaves behind. When
they run out the newest sequence of the running tenant with the highest counter is preempted: it gives up its blocks,
keeps its tokens and is computed again later.

Progress. Blocks run out for a decode, or for a prompt whose window's blocks others share. It then goes on in this step,
or gives way itself while others go on, since one sequence alone always fits. Emitted tokens are kept, so no chain of
preemptions is endless; and as those that go on are charged and who gave way is not, it does not stay the one with the
highest counter.

Pauses. A step of batch work may pause while other steps are planned and computed. Its sequences stay as they are
meanwhile, and no more batch work is planned.

One step ahead. A step may be planned while the one before it is computed: whether a sequence goes on is then known, or
guessed (a token may end it), but not by which token. A sequence that ends after all has computed a row in vain. Nobody
is preempted on a guess, and a sequence whose next token depends on the text of the last one makes all wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Many

from engine.protocol import EngineError, Final, GenerateRequest, Service, StepOutputs, TenantStats
from engine.scheduling.admission import Admission
from engine.scheduling.band import Band, weight_of
from engine.scheduling.batch_work import WANTED_AHEAD, BatchWork
from engine.scheduling.block_manager import BlockManager
from engine.scheduling.completion import NOT_A_NUMBER, Progress, take_launch, take_result
from engine.scheduling.drafter import drafter_of
from engine.scheduling.fairness import DECODE_COST
from engine.scheduling.limits import Limits, check_request
from engine.scheduling.matcher_time import MatcherTime
from engine.scheduling.request_book import RequestBook
from engine.scheduling.request_group import RequestGroup, embedding_of
from engine.scheduling.running_set import AdapterSlots
from engine.scheduling.step_time import StepLoad
from engine.scheduling.totals import Totals
from engine.sequence import Chunk, ChunkResult, Drafter, Matcher, Plan, Sequence, Status

AFTER_ALL_SLOTS = 1 << 30
BACKGROUND_WEIGHT = 0.1
"""The largest weight of an interactive request that counts as background: others do not wait for it."""

BACKGROUND_TOKENS = 32
"""The most prompt tokens of all background requests in one step. A step cannot be interrupted: a request that arrives
while it is computed waits for all of it."""

RECENT_S = 60.0
"""Seconds after which batch work may take cached blocks that interactive requests have used."""


class Scheduler:
    """Owns every request from its arrival to its final message."""

    def __init__(
        self,
        blocks: BlockManager,
        adapters: AdapterSlots,
        limits: Limits,
        clock: Callable[[], float],
        make_drafter: Callable[[GenerateRequest], Drafter] = drafter_of,
    ) -> None:
        self._blocks = blocks
        self._limits = limits
        self._clock = clock
        self._make_drafter = make_drafter
        self._interactive = Band(blocks, adapters)
        self._batch_band = Band(blocks, adapters)
        self._requests = RequestBook(self._interactive, self._batch_band, clock, limits.length_switch)
        self._admission = Admission(self._interactive, blocks, adapters, limits.token_bytes, clock)
        self._matcher_time = MatcherTime()
        self.totals = Totals()
        self._batch = BatchWork(
            self._batch_band,
            self._interactive,
            Admission(self._batch_band, blocks, adapters, limits.token_bytes, clock),
            blocks,
            adapters,
            limits,
            self._matcher_time,
            self.totals,
            self._note_start,
        )
        self._aged_s = clock()

    @property
    def is_empty(self) -> bool:
        """Tell whether every request has ended."""
        return not self._interactive.num_alive and not self._batch_band.num_alive

    @property
    def num_running(self) -> int:
        """The number of interactive choices that run."""
        return len(self._interactive.running)

    @property
    def num_waiting(self) -> int:
        """The number of interactive choices that do not run, those held back by a grammar or their leader included."""
        return self._interactive.num_waiting

    @property
    def num_batch_running(self) -> int:
        """The number of choices of the batch band that hold memory, whether or not the last step computed them."""
        return len(self._batch_band.running)

    @property
    def num_batch_waiting(self) -> int:
        """The number of choices of the batch band that do not run."""
        return self._batch_band.num_waiting

    @property
    def num_batch_wanted(self) -> int:
        """The number of choices of the batch band that heartbeats ask gateways for.

        It is twice the most rows of a step, what ends in two seconds, and a few.
        """
        num_ending = 2 * self._batch_band.finish_rate.per_s(self._clock())
        wanted = 2 * self._batch.num_rows + int(num_ending) + WANTED_AHEAD
        return min(wanted, self._limits.max_num_seqs + self._limits.max_batch_waiting)

    @property
    def batch_is_in_the_way(self) -> bool:
        """Tell whether interactive requests lack memory or a slot that sequences of a paused step hold."""
        return self._batch.is_in_the_way

    @property
    def paused_share(self) -> float:
        """The part of the time of other steps in which a paused step of batch work goes on beside them."""
        return max(self._limits.batch.lengthening, self._limits.batch.share)

    @property
    def num_adapter_users(self) -> int:
        """The number of running sequences that hold an adapter slot."""
        running = [*self._interactive.running, *self._batch_band.running]
        return sum(sequence.adapter_slot is not None for sequence in running)

    def tenant_stats(self, max_tenants: int) -> dict[str, TenantStats]:
        """Return the figures of the tenants with the most choices here."""
        bands = (self._interactive, self._batch_band)
        num_running = Counter(sequence.request.tenant for band in bands for sequence in band.running)
        num_alive = self._interactive.alive_by_tenant + self._batch_band.alive_by_tenant
        stats: dict[str, TenantStats] = {}
        for tenant, count in num_alive.most_common(max_tenants):
            band = bands[tenant not in self._interactive.alive_by_tenant]
            stats[tenant] = TenantStats(
                num_running[tenant], count - num_running[tenant], band.counters.service_of(tenant)
            )
        return stats

    # requests come and go

    def add(self, request: GenerateRequest, seed: int) -> EngineError | None:
        """Queue a request, its choice i drawing with seed + i. Return why it can't be queued, or None.

        Nothing is kept of a request that can't be queued. A request with a grammar waits for `set_matchers`.
        """
        error = check_request(request, self._limits)
        if error is not None:
            return error
        error = self._queue_full(request)
        if error is None:
            self._requests.add(request, seed)
        return error

    def _queue_full(self, request: GenerateRequest) -> EngineError | None:
        """Return queue_full if the request finds no place, or None.

        Beyond what may run, a tenant holds at most as many places as it leaves free (Choudhury and Hahne, 1998: dynamic
        queue length thresholds), so that a tenant that floods the queue keeps nobody else out of it.
        """
        band, limits = self._requests.band_of(request), self._limits
        num_alive, max_waiting = (
            band.num_alive,
            limits.max_waiting if request.batch is None else limits.max_batch_waiting,
        )
        num_free = limits.max_num_seqs + max_waiting - num_alive - request.n
        num_mine = band.alive_by_tenant[request.tenant]
        if num_free >= max(0, num_mine + request.n - limits.max_num_seqs):
            return None
        message = f"{num_mine} completions of this tenant and {num_alive - num_mine} others run or wait"
        return EngineError("queue_full", message, self._requests.retry_after_s(band))

    def count_elsewhere(self, services: Mapping[str, Service]) -> None:
        """Count the service that tenants' interactive requests got on other replicas of the pool.

        See `engine.scheduling.fairness`.
        """
        for tenant, used in services.items():
            moved = used.adapter_bytes / self._limits.token_bytes
            self._interactive.counters.charge_elsewhere(
                tenant, used.prompt_tokens + DECODE_COST * used.completion_tokens + moved
            )

    def find(self, request_id: str) -> RequestGroup | None:
        """Return a request that has not ended; None for another one."""
        return self._requests.find(request_id)

    def set_matchers(self, group: RequestGroup, make_matcher: Callable[[], Matcher]) -> None:
        """Set the matchers of a request whose grammar is compiled: it may be admitted.

        Raises MatcherError: when a matcher cannot be made; nothing has changed then.
        """
        self._requests.set_matchers(group, make_matcher)

    def abort(self, request_id: str, num_kept_tokens: int | None, index: int | None = None) -> Final | None:
        """Abort a request, or one of its choices, as `protocol.Abort` says.

        Return the request's final; None if some of the request goes on, or all of it has ended before.
        """
        group = self._requests.find(request_id)
        if group is None or (index is not None and not 0 <= index < len(group.choices)):
            return None
        for choice in reversed(group.choices if index is None else [group.choices[index]]):
            if num_kept_tokens is not None:
                choice.num_kept_tokens = min(num_kept_tokens, choice.num_completion_tokens)
            if choice.is_alive:
                self._requests.end(choice)
        if group.num_alive:
            return None
        return self._requests.close(group, "abort" if num_kept_tokens is None else "stop")

    def fail(self, request_id: str, error: EngineError) -> Final | None:
        """End a request that can't go on, and return its final; None when it has already ended."""
        group = self._requests.find(request_id)
        if group is None:
            return None
        self._requests.end_all(group)
        return self._requests.close(group, "error", error)

    def waiting_for(self, key: str) -> list[Sequence]:
        """Return the queued sequences that need this adapter, interactive ones first, in order of arrival."""
        everyone = [*self._interactive.waiting, *self._batch_band.waiting]
        waiting = [sequence for sequence in everyone if sequence.request.adapter == key]
        return sorted(waiting, key=lambda sequence: (sequence.is_batch, sequence.arrived_s))

    def note_step(self, plan: Plan, seconds: float) -> None:
        """Learn the costs of steps from the time that this one took."""
        self._batch.step_time.observe(StepLoad.of(plan.decodes, plan.prefills), seconds)

    # steps

    def schedule(self, paused: Plan | None = None) -> Plan:
        """Return the next step, whose blocks are already handed out.

        The plan is also empty while pending tokens must be known first. paused: a launched plan, all of batch work,
        whose step pauses: then only interactive requests are planned.
        """
        self._age_recent_use()
        if self._awaits_tokens(paused):
            return Plan([], [])
        if self._limits.length_switch:
            self._begin_long_ones_again(paused)
        self._batch.begin_step(paused)
        num_preemptions = self.totals.preemptions
        decoding, prefilling = self._continue_running()
        decoding = self._matcher_time.start_step(decoding)
        left = self._limits.max_batched_tokens - len(decoding)
        for_drafts = left // 2 if prefilling or self._interactive.waiting else left  # guesses keep no prompts waiting
        decodes: list[Chunk] = []
        for sequence in decoding:
            drafts = self._draft(sequence, for_drafts) if self._limits.num_draft_tokens else ()
            decodes.append(Chunk.of(sequence, sequence.num_computed, 1 + len(drafts), drafts))
            left -= len(drafts)
            for_drafts -= len(drafts)
        if self._batch_band.num_alive and paused is None:
            left -= sum(chunk.num_tokens for chunk in self._batch.take_owed(self._num_free_places(), left))
        prefills: list[Chunk] = []
        for sequence in prefilling:
            left -= self._prefill(sequence, left, prefills)
        has_memory = True
        if self.totals.preemptions == num_preemptions:  # else a preempted sequence would come straight back
            left, has_memory = self._admit(left, prefills)
        if not self._batch_band.num_alive:
            return Plan(decodes, prefills)
        if paused is None:
            num_places = self._num_free_places() - self._batch.num_held_places
            self._batch.fill(decodes, prefills, num_places, left, may_grow=has_memory)
        batch = self._batch.end_step(decodes, prefills)
        decodes = sorted([*decodes, *batch.decodes], key=lambda chunk: _slot_order(chunk.sequence))
        return Plan(decodes, prefills + batch.prefills)

    def launched(self, plan: Plan) -> None:
        """Record that the step of a plan is launched: the next one may be planned."""
        for chunk in plan.chunks:
            take_launch(chunk)

    def commit(self, plan: Plan, results: Many[ChunkResult]) -> StepOutputs:
        """Take the results of a step that was launched, in the order of plan.chunks."""
        outputs = StepOutputs([], [])
        for chunk, result in zip(plan.chunks, results, strict=True):
            if chunk.sequence.status is not Status.RUNNING:
                continue  # the sequence has ended in the step before, by an abort, or by another choice of its request
            progress = take_result(chunk, result, self._limits.eos_token_ids)
            final = self._account(chunk.sequence, progress)
            if progress.delta is not None:
                outputs.deltas.append(progress.delta)
            if final is not None:
                outputs.finals.append(final)
        return outputs

    def check_integrity(self) -> None:
        """Check the invariants of requests and blocks; tests do so after every step."""
        self._requests.check_integrity()
        self._blocks.check_integrity([*self._interactive.running, *self._batch_band.running])

    def _age_recent_use(self) -> None:
        now_s = self._clock()
        if now_s - self._aged_s >= RECENT_S:
            self._aged_s = now_s
            self._blocks.age()
            self._batch.age()

    def _num_free_places(self) -> int:
        """Return the rows of a step that no interactive sequence takes.

        A sequence whose last token is pending takes none.
        """
        num_taken = sum(not sequence.needs_no_step for sequence in self._interactive.running)
        return self._limits.max_num_seqs - num_taken

    def _awaits_tokens(self, paused: Plan | None) -> bool:
        """Tell whether a next token depends on pending ones, or if blocks are lacking that a pending end may free.

        Batch work does not hold up interactive requests: sequences of batch work whose next token depends on a pending
        one are left out of the step, and so is all batch work while a step of it pauses.
        """
        interactive = [sequence for sequence in self._interactive.running if not sequence.needs_no_step]
        if any(s.num_pending and (s.is_chosen_by_text or self._limits.num_draft_tokens) for s in interactive):
            return True
        batch = [] if paused is not None else list(self._batch_band.running)
        if not interactive and any(s.num_pending and s.is_chosen_by_text for s in batch):
            return True
        everyone = [*self._interactive.running, *batch]
        if any(sequence.num_pending and self._becomes_long(sequence) for sequence in everyone):
            return True
        is_ahead = any(sequence.num_pending for sequence in everyone)
        return is_ahead and sum(map(self._blocks.num_missing, interactive)) > self._blocks.num_free

    def _becomes_long(self, sequence: Sequence) -> bool:
        """Tell whether a running sequence goes on beyond the length at which its rotation changes."""
        switch = self._limits.length_switch
        return bool(switch) and not sequence.is_long and sequence.length > switch and not sequence.needs_no_step

    def _begin_long_ones_again(self, paused: Plan | None) -> None:
        """Have sequences that become long wait to be computed again: what is cached was rotated by other angles.

        paused: as for `schedule`.
        """
        for band in (self._interactive, self._batch_band) if paused is None else (self._interactive,):
            for sequence in [each for each in band.running if self._becomes_long(each)]:
                band.running.leave(sequence)
                sequence.status = Status.WAITING
                sequence.forget_prompt()
                sequence.become_long()
                band.waiting.push(sequence)

    def _continue_running(self) -> tuple[list[Sequence], list[Sequence]]:
        """Return the running interactive sequences of a step: decodes, and prompts that are being computed.

        Decodes have room for their next token and come by adapter slot, the base last; prompts, which have room for at
        least one token, come by their tenants' counters. The oldest come first among equals.
        """
        decoding: list[Sequence] = []
        prefilling: list[Sequence] = []
        num_preemptions = self.totals.preemptions
        for sequence in list(self._interactive.running):
            if sequence.status is not Status.RUNNING or sequence.needs_no_step:
                continue
            if not sequence.is_decoding:
                if self._make_room(sequence):
                    prefilling.append(sequence)
            elif len(decoding) < self._limits.max_batched_tokens and self._make_room(sequence):
                decoding.append(sequence)
        if self.totals.preemptions != num_preemptions:
            decoding = [sequence for sequence in decoding if sequence.status is Status.RUNNING]
            prefilling = [sequence for sequence in prefilling if sequence.status is Status.RUNNING]
        decoding.sort(key=_slot_order)
        prefilling.sort(key=lambda s: self._interactive.counters.service_of(s.request.tenant))
        return decoding, prefilling

    def _make_room(self, sequence: Sequence) -> bool:
        """Take blocks for a sequence's next token, preempting others; return False if it gets none in this step.

        Then it was preempted itself, or waits for the memory of batch work whose step pauses and ends next.
        """
        while not self._grow(sequence, sequence.num_computed + 1):
            if self._batch.delays_interactive:
                return False
            victim = self._interactive.running.victim()
            self._interactive.running.leave(victim)
            victim.status = Status.WAITING
            victim.forget_prompt()
            self._interactive.waiting.push(victim)
            self.totals.preemptions += 1
            if victim is sequence:
                return False
        return True

    def _grow(self, sequence: Sequence, num_tokens: int) -> bool:
        """Grow a sequence as `BlockManager.grow` does, if need be at the cost of batch work."""
        if self._batch_band.running:
            self._batch.reclaim(self._blocks.num_missing(sequence, num_tokens))
        return self._blocks.grow(sequence, num_tokens)

    def _draft(self, sequence: Sequence, left: int) -> tuple[int, ...]:
        """Return guesses for a decode, if budget and blocks are left for them and more than one token is to come."""
        num_to_come = sequence.request.sampling.max_tokens - sequence.num_completion_tokens
        num_wanted = min(self._limits.num_draft_tokens, left, num_to_come - 1)
        if self._limits.length_switch and not sequence.is_long:  # no draft is of a long sequence
            num_wanted = min(num_wanted, self._limits.length_switch - sequence.length)
        if num_wanted <= 0 or sequence.is_chosen_by_text:
            return ()
        if sequence.drafter is None:
            sequence.drafter = self._make_drafter(sequence.request)
        drafts = sequence.drafter.propose(sequence.token_ids, num_wanted)
        if not self._grow(sequence, len(sequence.token_ids) + len(drafts)):
            return ()
        self.totals.draft_tokens += len(drafts)
        return drafts

    def _admit(self, left: int, prefills: list[Chunk]) -> tuple[int, bool]:
        """Start interactive sequences; return the rest of the step's tokens, and whether none of them lacks memory.

        left: the tokens that are left of the step's budget. prefills: gets the chunks of their prompts.
        """
        num_places = self._num_free_places() - self._batch.num_held_places
        while left > 0 and self._interactive.waiting and num_places > 0:
            sequence = self._admission.next()
            if sequence is None:
                break
            # A block stays free for each sequence that runs, so that the newcomer does not cause a preemption at once.
            num_spare = len(self._interactive.running) * self._blocks.num_tables + self._batch.num_held_blocks
            if self._batch_band.running:
                needed = self._blocks.num_needed(sequence, sequence.may_reuse_prefix)
                self._batch.reclaim(needed + num_spare, sequence)
            if self._batch.holds_slot:
                return left, False
            if not self._admission.start(sequence, num_spare):
                return left, False
            if not sequence.started_s:
                self._note_start(sequence)
            left -= self._prefill(sequence, left, prefills)
            num_places -= 1
        return left, True

    def _note_start(self, sequence: Sequence) -> None:
        """Record a sequence's start, and at a request's first one its cached tokens and its wait for an adapter."""
        now_s = self._clock()
        group = self._requests.find(sequence.request_id)
        if group is not None and not group.is_started:
            group.num_cached_tokens = sequence.num_computed
            if sequence.adapter_wait_since_s:
                group.adapter_wait_s = now_s - sequence.adapter_wait_since_s
            if sequence.may_reuse_prefix:
                self.totals.prefix_query_tokens += sequence.num_prompt_tokens
                self.totals.prefix_hit_tokens += sequence.num_computed
        sequence.started_s = now_s

    def _prefill(self, sequence: Sequence, left: int, prefills: list[Chunk]) -> int:
        """Compute as much of a sequence as the budget and free blocks allow; return how many tokens that is.

        The sequence's last token waits while its grammar has no time in this step.

        left: the tokens that are left of the step's budget. prefills: gets the chunk.
        """
        if _is_background(sequence):
            left = min(left, BACKGROUND_TOKENS - sum(c.num_tokens for c in prefills if _is_background(c.sequence)))
        num_tokens = min(sequence.num_uncomputed, left)
        while num_tokens > 0 and not self._grow(sequence, sequence.num_computed + num_tokens):
            num_tokens //= 2
        if num_tokens > 0 and num_tokens == sequence.num_uncomputed and not self._matcher_time.take(sequence):
            num_tokens -= 1
        if num_tokens > 0:
            prefills.append(Chunk.of(sequence, sequence.num_computed, num_tokens))
            self.totals.prompt_tokens += num_tokens
        return num_tokens

    def _account(self, sequence: Sequence, progress: Progress) -> Final | None:
        """Update the prefix cache, the counters of service and the request's other choices by a chunk's progress.

        Return the request's final if this is its end.
        """
        if progress.error is not None:
            return self.fail(sequence.request_id, progress.error)
        if self._limits.caches_prefixes:
            self._blocks.register(sequence, progress.num_computed)
        group = self._requests.find(sequence.request_id)
        assert group is not None
        if group.held and progress.num_computed >= sequence.num_prompt_tokens:
            self._requests.queue_held(group)
        if progress.delta is not None:
            sequence.first_token_s = sequence.first_token_s or self._clock()
            self.totals.generated_tokens += progress.num_new
            self.totals.accepted_draft_tokens += max(progress.num_new - 1, 0)
            self.totals.batch_generated_tokens += progress.num_new * sequence.is_batch
            cost = DECODE_COST * progress.num_new / weight_of(sequence, self._clock())
            self._requests.band_of(sequence.request).counters.charge(sequence.request.tenant, cost)
        if progress.finish_reason is None:
            return None
        embedding = None
        if sequence.pooled is not None:
            embedding = embedding_of(sequence.request, sequence.pooled)
            if embedding is None:
                return self.fail(sequence.request_id, EngineError("internal", NOT_A_NUMBER))
        self._requests.end(sequence)
        return None if group.num_alive else self._requests.close(group, progress.finish_reason, embedding=embedding)


def _slot_order(sequence: Sequence) -> int:
    """Return the sort key that orders sequences by adapter slot, the base last."""
    return AFTER_ALL_SLOTS if sequence.adapter_slot is None else sequence.adapter_slot


def _is_background(sequence: Sequence) -> bool:
    return sequence.request.weight <= BACKGROUND_WEIGHT
