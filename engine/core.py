"""The stepping thread: commands in, schedule, run, commit, outputs out. It knows no gateways and no sockets."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Sequence as Many
from typing import Protocol

from engine.adapter_pool import AdapterPool
from engine.block_manager import BlockManager
from engine.mailbox import Drain, Drained, Mailbox, Wake
from engine.protocol import (
    Abort,
    AdapterStatus,
    EngineError,
    EngineStats,
    Final,
    GenerateRequest,
    LoadAdapter,
    StepOutputs,
    UnloadAdapter,
    Usage,
)
from engine.scheduler import Scheduler
from engine.sequence import ChunkResult, Plan, Sequence

log = logging.getLogger(__name__)

IDLE_WAIT_S = 0.5
STATS_INTERVAL_S = 0.2


class Runner(Protocol):
    """Computes plans; `ModelRunner`, or a test's stand-in."""

    def run(self, plan: Plan) -> Many[ChunkResult]: ...


class EngineCore:
    """Owns the loop. Everything it is given belongs to its thread from `run` on."""

    def __init__(
        self, mailbox: Mailbox, scheduler: Scheduler, blocks: BlockManager, adapters: AdapterPool, runner: Runner
    ) -> None:
        self._mailbox = mailbox
        self._scheduler = scheduler
        self._blocks = blocks
        self._adapters = adapters
        self._runner = runner
        self._draining = False
        self._wanted: set[str] = set()  # digests whose LoadAdapter awaits an answer
        self._num_prompt_tokens = self._num_generated_tokens = self._num_steps = 0
        self._next_stats_s = 0.0

    def run(self) -> None:
        """Until drained. A fault outside a step ends the process: the supervisor starts a fresh one."""
        moved = True
        while not (self._draining and not self._scheduler.num_running and not self._scheduler.num_waiting):
            for command in self._mailbox.take_commands(0.0 if moved else IDLE_WAIT_S):
                self._obey(command)
            self._take_arrivals()
            moved = self._step()
            self._post_stats(idle=not moved)
        self._adapters.close()
        self._post_stats(idle=True)
        self._mailbox.post(Drained())

    def preload(self, digest: str) -> None:
        """Before `run`: wait until an adapter is resident."""
        self._adapters.preload(digest)

    def _obey(self, command: object) -> None:
        match command:
            case GenerateRequest():
                self._add(command)
            case Abort(request_id, num_kept_tokens):
                self._abort(request_id, num_kept_tokens)
            case LoadAdapter(digest):
                if self._adapters.pin(digest):
                    self._mailbox.post(AdapterStatus(digest, True))
                else:
                    self._wanted.add(digest)
            case UnloadAdapter(digest):
                self._mailbox.post(AdapterStatus(digest, not self._adapters.unload(digest)))
            case Drain():
                self._draining = True
            case Wake():
                pass

    def _add(self, request: GenerateRequest) -> None:
        seed = request.sampling.seed if request.sampling.seed is not None else secrets.randbits(64)
        sequence = Sequence(request, list(request.prompt_token_ids), seed, time.monotonic())
        error = self._scheduler.add(sequence)
        if error is not None:
            usage = Usage(prompt_tokens=0, completion_tokens=0)  # nothing of it was computed
            self._mailbox.post(StepOutputs(finals=[Final(request.request_id, "error", usage, error)]))

    def _abort(self, request_id: str, num_kept_tokens: int | None) -> None:
        sequence = self._scheduler.find(request_id)
        if sequence is None:
            return
        final = self._scheduler.abort(request_id, num_kept_tokens)
        assert final is not None
        self._mailbox.post(StepOutputs(finals=[final]))
        digest = sequence.request.adapter
        if digest and not self._scheduler.waiting_for(digest):
            self._adapters.withdraw(digest)

    def _take_arrivals(self) -> None:
        for arrival in self._adapters.arrivals():
            waiting = self._scheduler.waiting_for(arrival.digest)
            if arrival.adapter is not None and waiting:
                waiting[0].adapter_load_bytes = arrival.adapter.num_bytes
            if arrival.error is not None and waiting:
                finals = [self._scheduler.fail(sequence, arrival.error) for sequence in waiting]
                self._mailbox.post(StepOutputs(finals=finals))
            elif not waiting:
                self._adapters.withdraw(arrival.digest)
            if arrival.digest in self._wanted:
                self._wanted.discard(arrival.digest)
                message = None if arrival.error is None else arrival.error.message
                self._mailbox.post(AdapterStatus(arrival.digest, arrival.error is None, message))

    def _step(self) -> bool:
        """False when there was nothing to compute."""
        plan = self._scheduler.schedule()
        if not plan:
            return False
        try:
            results = self._runner.run(plan)
        except Exception:
            log.exception("a step of %d sequences failed", len(plan.chunks))
            error = EngineError("internal", "the engine failed while it computed this request")
            self._mailbox.post(StepOutputs(finals=[self._scheduler.fail(c.sequence, error) for c in plan.chunks]))
            return True
        outputs = self._scheduler.commit(plan, results)
        self._num_steps += 1
        self._num_prompt_tokens += sum(chunk.num_tokens for chunk in plan.prefills)
        self._num_generated_tokens += len(outputs.deltas)
        if outputs.deltas or outputs.finals:
            self._mailbox.post(outputs)
        return True

    def _post_stats(self, idle: bool) -> None:
        now_s = time.monotonic()
        if now_s < self._next_stats_s and not idle:
            return
        self._next_stats_s = now_s + STATS_INTERVAL_S
        self._mailbox.post(
            EngineStats(
                num_running=self._scheduler.num_running,
                num_waiting=self._scheduler.num_waiting,
                kv_blocks_used=self._blocks.num_blocks - self._blocks.num_free,
                kv_blocks_total=self._blocks.num_blocks,
                preemptions_total=self._scheduler.num_preemptions,
                prompt_tokens_total=self._num_prompt_tokens,
                generation_tokens_total=self._num_generated_tokens,
                steps_total=self._num_steps,
                adapter_loads_total=self._adapters.num_loads,
                adapter_load_bytes_total=self._adapters.num_load_bytes,
                resident_adapters=self._adapters.resident,
            )
        )
