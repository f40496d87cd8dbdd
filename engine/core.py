"""The stepping thread: commands in, schedule, run, commit, outputs out. It knows no gateways and no sockets."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from collections.abc import Sequence as Many
from typing import Protocol

from engine.lora.pool import AdapterPool
from engine.mailbox import Drain, Drained, Mailbox, Wake
from engine.protocol import (
    Abort,
    AdapterStatus,
    EngineError,
    EngineStats,
    Final,
    GenerateRequest,
    Grammar,
    LoadAdapter,
    StepOutputs,
    UnloadAdapter,
    Usage,
)
from engine.scheduling.block_manager import BlockManager
from engine.scheduling.request_group import RequestGroup
from engine.scheduling.scheduler import Scheduler
from engine.sequence import ChunkResult, Matcher, MatcherError, Plan

log = logging.getLogger(__name__)

IDLE_WAIT_S = 0.5
STATS_INTERVAL_S = 0.2
NUM_TENANT_STATS = 32


class Runner(Protocol):
    """Computes plans; `ModelRunner`, or a test's stand-in."""

    def run(self, plan: Plan) -> Many[ChunkResult]: ...


class Compiled(Protocol):
    """The end of a compilation: a maker of fresh matchers, one for each choice, or why there is none."""

    @property
    def request_id(self) -> str: ...

    @property
    def make_matcher(self) -> Callable[[], Matcher] | None: ...

    @property
    def error(self) -> EngineError | None: ...


class Compiler(Protocol):
    """Compiles grammars beside running steps, and wakes the mailbox when one is ready."""

    def submit(self, request_id: str, grammar: Grammar, tenant: str) -> None: ...

    def withdraw(self, request_id: str) -> None:
        """Nobody waits for this one any more; `ready` may still return it."""

    def ready(self) -> Many[Compiled]:
        """Those that ended since the last call."""

    def close(self) -> None: ...


class EngineCore:
    """Owns the loop. Everything it is given belongs to its thread from `run` on. compiler: None refuses grammars."""

    def __init__(
        self,
        mailbox: Mailbox,
        scheduler: Scheduler,
        blocks: BlockManager,
        adapters: AdapterPool,
        runner: Runner,
        compiler: Compiler | None = None,
    ) -> None:
        self._mailbox = mailbox
        self._scheduler = scheduler
        self._blocks = blocks
        self._adapters = adapters
        self._runner = runner
        self._compiler = compiler
        self._compiling: dict[str, RequestGroup] = {}
        self._num_submitted = 0
        self._draining = False
        self._wanted: set[str] = set()  # digests whose LoadAdapter awaits an answer
        self._num_steps = 0
        self._next_stats_s = 0.0

    def run(self) -> None:
        """Until drained. A fault outside a step ends the process: the supervisor starts a fresh one."""
        moved = True
        while not (self._draining and not self._scheduler.num_running and not self._scheduler.num_waiting):
            for command in self._mailbox.take_commands(0.0 if moved else IDLE_WAIT_S):
                self._obey(command)
            self._take_arrivals()
            self._take_compiled()
            moved = self._step()
            self._post_stats(idle=not moved)
        self._adapters.close()
        if self._compiler is not None:
            self._compiler.close()
        self._post_stats(idle=True)
        self._mailbox.post(Drained())

    def preload(self, digest: str) -> None:
        """Before `run`: wait until an adapter is resident."""
        self._adapters.preload(digest)

    def _obey(self, command: object) -> None:
        match command:
            case GenerateRequest():
                self._add(command)
            case Abort():
                self._abort(command)
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
        sampling = request.sampling
        seed = sampling.seed if sampling.seed is not None else secrets.randbits(63)
        if sampling.grammar is not None and self._compiler is None:
            error: EngineError | None = EngineError("invalid_request", "grammar: this engine compiles none")
        else:
            error = self._scheduler.add(request, seed)
        if error is not None:
            usage = Usage(prompt_tokens=0, completion_tokens=0)  # nothing of it was computed
            self._mailbox.post(StepOutputs(finals=[Final(request.request_id, "error", usage, error)]))
        elif sampling.grammar is not None and self._compiler is not None:
            self._compile(self._compiler, request, sampling.grammar)

    def _compile(self, compiler: Compiler, request: GenerateRequest, grammar: Grammar) -> None:
        """Under a key of its own: after an abort the same request id may come again, with another grammar."""
        group = self._scheduler.find(request.request_id)
        assert group is not None
        self._num_submitted += 1
        key = f"{self._num_submitted}:{request.request_id}"
        self._compiling[key] = group
        compiler.submit(key, grammar, request.tenant)

    def _stop_compiling(self, group: RequestGroup) -> None:
        for key in [key for key, waiting in self._compiling.items() if waiting is group]:
            assert self._compiler is not None
            self._compiler.withdraw(key)
            del self._compiling[key]

    def _take_compiled(self) -> None:
        for compiled in self._compiler.ready() if self._compiling and self._compiler is not None else ():
            group = self._compiling.pop(compiled.request_id, None)
            error = compiled.error
            if group is None or not group.num_alive:
                continue
            if compiled.make_matcher is not None:
                try:
                    self._scheduler.set_matchers(group, compiled.make_matcher)
                except MatcherError as fault:
                    error = EngineError("invalid_request", f"grammar: {fault}")
            if error is not None:
                self._fail([group.request.request_id], error)

    def _abort(self, abort: Abort) -> None:
        group = self._scheduler.find(abort.request_id)
        if group is None:
            return
        final = self._scheduler.abort(abort.request_id, abort.num_kept_tokens, abort.index)
        if final is None:
            return
        self._mailbox.post(StepOutputs(finals=[final]))
        self._stop_compiling(group)
        digest = group.request.adapter
        if digest and not self._scheduler.waiting_for(digest):
            self._adapters.withdraw(digest)

    def _fail(self, request_ids: Many[str], error: EngineError) -> None:
        """Each id may be named more than once, for more than one choice."""
        finals = [final for name in request_ids if (final := self._scheduler.fail(name, error)) is not None]
        self._mailbox.post(StepOutputs(finals=finals))

    def _take_arrivals(self) -> None:
        for arrival in self._adapters.arrivals():
            waiting = self._scheduler.waiting_for(arrival.digest)
            if arrival.adapter is not None and waiting:
                waiting[0].adapter_load_bytes = arrival.adapter.num_bytes
            if arrival.error is not None and waiting:
                self._fail([sequence.request_id for sequence in waiting], arrival.error)
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
            self._fail([chunk.sequence.request_id for chunk in plan.chunks], error)
            return True
        outputs = self._scheduler.commit(plan, results)
        self._num_steps += 1
        if outputs.deltas or outputs.finals:
            self._mailbox.post(outputs)
        return True

    def _post_stats(self, idle: bool) -> None:
        now_s = time.monotonic()
        if now_s < self._next_stats_s and not idle:
            return
        self._next_stats_s = now_s + STATS_INTERVAL_S
        self._mailbox.post(self._stats())

    def _stats(self) -> EngineStats:
        totals, adapters = self._scheduler.totals, self._adapters
        return EngineStats(
            num_running=self._scheduler.num_running,
            num_waiting=self._scheduler.num_waiting,
            kv_blocks_used=self._blocks.num_blocks - self._blocks.num_free,
            kv_blocks_total=self._blocks.num_blocks,
            preemptions_total=totals.preemptions,
            prompt_tokens_total=totals.prompt_tokens,
            generation_tokens_total=totals.generated_tokens,
            steps_total=self._num_steps,
            adapter_loads_total=adapters.num_loads,
            adapter_load_bytes_total=adapters.num_load_bytes,
            prefix_query_tokens_total=totals.prefix_query_tokens,
            prefix_hit_tokens_total=totals.prefix_hit_tokens,
            draft_tokens_total=totals.draft_tokens,
            accepted_draft_tokens_total=totals.accepted_draft_tokens,
            tenants=self._scheduler.tenant_stats(NUM_TENANT_STATS),
            resident_adapters=adapters.resident,
        )
