"""Which tokens the next step computes. Data in, plan out: no torch, no clock of its own, no sockets.

Continuous batching (Yu et al., 2022: Orca) with one token budget per step: sequences that decode come first, what is
left goes to prefill in chunks (Agrawal et al., 2024: Sarathi-Serve). When blocks run out the newest sequence is
preempted: it gives up its blocks, keeps its tokens and is computed again later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Many
from typing import Protocol

import msgspec

from engine.block_manager import BlockManager
from engine.protocol import Delta, EngineError, Final, FinishReason, StepOutputs, Usage
from engine.sequence import Chunk, ChunkResult, Plan, Sampled, Sequence, Status


class AdapterSlots(Protocol):
    """What the scheduler asks of the adapter pool."""

    def acquire(self, digest: str) -> int | None:
        """A slot holding this adapter, now in use once more; None while it is not there yet."""

    def release(self, slot: int) -> None: ...


class Scheduler:
    """Owns every sequence from arrival to its final."""

    def __init__(
        self,
        blocks: BlockManager,
        adapters: AdapterSlots,
        *,
        max_num_seqs: int,
        max_batched_tokens: int,
        max_waiting: int,
        max_model_len: int,
        vocab_size: int,
        eos_token_ids: tuple[int, ...],
        clock: Callable[[], float],
    ) -> None:
        self._blocks = blocks
        self._adapters = adapters
        self._max_num_seqs = max_num_seqs
        self._max_batched_tokens = max_batched_tokens
        self._max_waiting = max_waiting
        self._max_model_len = max_model_len
        self._vocab_size = vocab_size
        self._eos = frozenset(eos_token_ids)
        self._clock = clock
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._by_id: dict[str, Sequence] = {}
        self.num_preemptions = 0

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_adapter_users(self) -> int:
        """Running sequences that hold an adapter slot."""
        return sum(sequence.adapter_slot is not None for sequence in self._running)

    def add(self, sequence: Sequence) -> EngineError | None:
        """Queue a sequence; the error says why it can't be, and then nothing is kept of it."""
        sampling = sequence.request.sampling
        total = sequence.num_prompt_tokens + sampling.max_tokens
        if not 0 < sequence.num_prompt_tokens < total <= self._max_model_len:
            return EngineError("invalid_request", f"prompt and max_tokens make {total} of {self._max_model_len} tokens")
        named = (*sequence.token_ids, *sampling.stop_token_ids)
        if not 0 <= min(named) <= max(named) < self._vocab_size:
            return EngineError("invalid_request", f"token ids must be in 0..{self._vocab_size - 1}")
        if len(self._by_id) >= self._max_num_seqs + self._max_waiting:
            return EngineError("queue_full", f"{len(self._by_id)} requests run or wait", retry_after_s=1.0)
        self._by_id[sequence.request_id] = sequence
        self._waiting.append(sequence)
        return None

    def find(self, request_id: str) -> Sequence | None:
        return self._by_id.get(request_id)

    def schedule(self) -> Plan:
        """The next step. Blocks for it are already handed out."""
        preemptions_before = self.num_preemptions
        decodes, prefills = self._schedule_running()
        if self.num_preemptions == preemptions_before:  # else who was just preempted would come straight back
            self._admit(prefills, self._max_batched_tokens - Plan(decodes, prefills).num_tokens)
        return Plan(decodes, prefills)

    def commit(self, plan: Plan, results: Many[ChunkResult]) -> StepOutputs:
        """Take the step's results, in the order of plan.chunks."""
        outputs = StepOutputs([], [])
        for chunk, result in zip(plan.chunks, results, strict=True):
            sequence = chunk.sequence
            sequence.num_computed += chunk.num_tokens
            for sampled in result.sampled:
                self._append(sequence, sampled, outputs)
        return outputs

    def abort(self, request_id: str, num_kept_tokens: int | None) -> Final | None:
        """End a sequence now; None when it has already ended. num_kept_tokens as in `protocol.Abort`."""
        sequence = self._by_id.get(request_id)
        if sequence is None:
            return None
        return self._finish(sequence, "abort" if num_kept_tokens is None else "stop", num_kept_tokens)

    def fail(self, sequence: Sequence, error: EngineError) -> Final:
        """End a sequence that can't go on."""
        return msgspec.structs.replace(self._finish(sequence, "error"), error=error)

    def waiting_for(self, digest: str) -> list[Sequence]:
        return [sequence for sequence in self._waiting if sequence.request.adapter == digest]

    def check_integrity(self) -> None:
        """Run by tests after every step."""
        everyone = [*self._running, *self._waiting]
        assert {id(sequence) for sequence in everyone} == {id(sequence) for sequence in self._by_id.values()}
        assert all(sequence.status is Status.RUNNING for sequence in self._running)
        assert all(sequence.status is Status.WAITING and not sequence.block_table for sequence in self._waiting)
        assert all(bool(s.request.adapter) == (s.adapter_slot is not None) for s in self._running)
        self._blocks.check_integrity(everyone)

    def _schedule_running(self) -> tuple[list[Chunk], list[Chunk]]:
        """Everyone who runs, decodes first, oldest first; preempts the newest when blocks run out."""
        decodes: list[Chunk] = []
        prefills: list[Chunk] = []
        left = self._max_batched_tokens
        for sequence in sorted(self._running, key=lambda s: s.num_uncomputed > 1):
            if sequence.status is not Status.RUNNING or not left:
                continue
            num_tokens = min(sequence.num_uncomputed, left)
            if not self._make_room(sequence, sequence.num_computed + num_tokens):
                continue
            is_decode = sequence.num_uncomputed == 1 and sequence.num_computed > 0
            chunk = Chunk(sequence, sequence.num_computed, num_tokens)
            (decodes if is_decode else prefills).append(chunk)
            left -= num_tokens
        alive = [[c for c in chunks if c.sequence.status is Status.RUNNING] for chunks in (decodes, prefills)]
        return sorted(alive[0], key=lambda chunk: not chunk.sequence.request.adapter), alive[1]

    def _make_room(self, sequence: Sequence, num_tokens: int) -> bool:
        """Blocks for a running sequence's first num_tokens tokens, preempting the newest; False if that was itself."""
        while not self._blocks.grow(sequence, num_tokens):
            victim = self._running[-1]
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _admit(self, prefills: list[Chunk], left: int) -> None:
        """Start waiting sequences, in order of arrival, skipping those whose adapter is not there yet."""
        skipped: list[Sequence] = []
        while self._waiting and left > 0 and len(self._running) < self._max_num_seqs:
            sequence = self._waiting.popleft()
            num_tokens = min(sequence.num_uncomputed, left)
            slot = self._adapters.acquire(sequence.request.adapter) if sequence.request.adapter else None
            if sequence.request.adapter and slot is None:
                skipped.append(sequence)
                continue
            if not self._has_room_to_start(sequence, num_tokens):
                if slot is not None:
                    self._adapters.release(slot)
                skipped.append(sequence)
                break
            sequence.adapter_slot = slot
            self._blocks.grow(sequence, num_tokens)
            sequence.status = Status.RUNNING
            sequence.started_s = sequence.started_s or self._clock()
            self._running.append(sequence)
            prefills.append(Chunk(sequence, 0, num_tokens))
            left -= num_tokens
        self._waiting.extendleft(reversed(skipped))

    def _has_room_to_start(self, sequence: Sequence, num_tokens: int) -> bool:
        """A free block is left for each running sequence, so that admission does not cause a preemption at once."""
        missing = self._blocks.num_missing(sequence, num_tokens)
        return missing + len(self._running) <= self._blocks.num_free or not self._running

    def _preempt(self, sequence: Sequence) -> None:
        self._leave_running(sequence)
        sequence.status = Status.WAITING
        sequence.num_preemptions += 1
        self.num_preemptions += 1
        self._waiting.appendleft(sequence)

    def _leave_running(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        self._blocks.release(sequence)
        if sequence.adapter_slot is not None:
            self._adapters.release(sequence.adapter_slot)
            sequence.adapter_slot = None

    def _append(self, sequence: Sequence, result: Sampled, outputs: StepOutputs) -> None:
        sampling = sequence.request.sampling
        if not result.finite:
            error = EngineError("internal", "the model's output is not a number: the adapter or the weights overflow")
            outputs.finals.append(self.fail(sequence, error))
            return
        sequence.token_ids.append(result.token_id)
        sequence.first_token_s = sequence.first_token_s or self._clock()
        count = sequence.num_completion_tokens
        stopped = count > sampling.min_tokens and (
            result.token_id in sampling.stop_token_ids or (not sampling.ignore_eos and result.token_id in self._eos)
        )
        logprobs = None if result.logprobs is None else [result.logprobs]
        shown = [] if stopped else [result.token_id]
        outputs.deltas.append(Delta(sequence.request_id, shown, count, logprobs=logprobs))
        if stopped or count == sampling.max_tokens:
            outputs.finals.append(self._finish(sequence, "stop" if stopped else "length"))

    def _finish(self, sequence: Sequence, reason: FinishReason, num_kept_tokens: int | None = None) -> Final:
        if sequence.status is Status.RUNNING:
            self._leave_running(sequence)
        else:
            self._waiting.remove(sequence)
        sequence.status = Status.FINISHED
        del self._by_id[sequence.request_id]
        return Final(sequence.request_id, reason, self._usage(sequence, num_kept_tokens))

    def _usage(self, sequence: Sequence, num_kept_tokens: int | None) -> Usage:
        count = sequence.num_completion_tokens
        kept = count if num_kept_tokens is None else min(num_kept_tokens, count)
        now_s = self._clock()
        started_s = sequence.started_s or now_s
        first_token_s = sequence.first_token_s or now_s
        return Usage(
            prompt_tokens=sequence.num_prompt_tokens if sequence.started_s else 0,  # else nothing was computed
            completion_tokens=kept,
            discarded_tokens=count - kept,
            queue_ms=(started_s - sequence.arrived_s) * 1e3,
            prefill_ms=(first_token_s - started_s) * 1e3,
            decode_ms=(now_s - first_token_s) * 1e3,
            adapter_load_bytes=sequence.adapter_load_bytes,
        )
