"""The stepping loop with commands at chosen steps, and a model whose answers are known in advance."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

import msgspec

from engine.compilations import Compilations
from engine.core import EngineCore
from engine.device import Pause
from engine.lora.layer import LoadedAdapter
from engine.lora.loader import HostTier
from engine.lora.pool import AdapterPool
from engine.mailbox import Drain, Event, Mailbox, Wake
from engine.probes import Probes
from engine.protocol import (
    Delta,
    EngineError,
    EngineStats,
    Final,
    GenerateRequest,
    Grammar,
    SamplingParams,
    StepOutputs,
)
from engine.scheduling.block_manager import BlockManager
from engine.scheduling.limits import Limits
from engine.scheduling.scheduler import Scheduler
from engine.sequence import ChunkResult, Matcher, Plan
from engine.statistics import Statistics
from tests.engine.harness import collect
from tests.engine.lora.loading import LoadsAtOnce
from tests.engine.scheduling.scheduler_model import EOS, VOCAB, CountingMatcher, HashingRunner
from tests.engine.steps import ComputedStep

LIMITS = Limits(
    max_num_seqs=4,
    max_batched_tokens=16,
    max_waiting=4,
    max_model_len=64,
    vocab_size=VOCAB,
    eos_token_ids=frozenset({EOS}),
    token_bytes=1,
)
PROMPT = list(range(10, 30))
NUM_BLOCKS = 64


class CompilerAnswer(msgspec.Struct):
    """A compiler's answer, with the fields of `engine.compilations.CompilationResult`."""

    request_id: str
    make_matcher: Callable[[], Matcher] | None
    error: EngineError | None


class SlowCompiler:
    """A compiler that answers at the second poll, and refuses the source "bad"."""

    def __init__(self) -> None:
        self.submitted: list[tuple[str, Grammar]] = []
        self.withdrawn: list[str] = []
        self.closed = False
        self._asked = 0

    def submit(self, request_id: str, grammar: Grammar, tenant: str) -> None:
        self.submitted.append((request_id, grammar))

    def withdraw(self, request_id: str) -> None:
        self.withdrawn.append(request_id)

    def ready(self) -> list[CompilerAnswer]:
        self._asked += 1
        if self._asked < 2:
            return []
        done, self.submitted = self.submitted, []
        refused = EngineError("invalid_request", "grammar: bad is not supported")
        return [
            CompilerAnswer(name, None, refused)
            if grammar.source == "bad"
            else CompilerAnswer(name, CountingMatcher, None)
            for name, grammar in done
        ]

    def close(self) -> None:
        self.closed = True


NUM_PARTS = 5
"""The parts of a step that can pause."""


class InParts:
    """A step in NUM_PARTS parts, which is computed when its last part is.

    before: called with the number of each part of all steps before it is computed.
    """

    def __init__(self, run: Callable[[], list[ChunkResult]], before: Callable[[], None]) -> None:
        self._run = run
        self._before = before
        self._left = NUM_PARTS
        self._results: list[ChunkResult] = []

    def go_on(self, pause: Pause | None, seconds: float) -> bool:
        while self._left:
            self._before()
            self._left -= 1
            if not self._left:
                self._results = self._run()
            elif seconds < math.inf or (pause is not None and pause.is_asked):
                return False
        return True

    def wait(self) -> list[ChunkResult]:
        return self._results


class CommandsByStep:
    """A runner that also sends the commands due at step k when step k is launched.

    by_part: commands by the number of a part of the steps that can pause; None: none can.

    faults: errors by step, raised when the step is launched, or when its "half" or its "results" are waited for; such a
    step leaves wrong entries in the cache.
    journal: the actions on each step, in order.
    slow: whether launches take long.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        pool: AdapterPool,
        later: dict[int, list[object]],
        *,
        ahead: bool,
        slow: bool,
        faults: Mapping[tuple[str, int], Exception],
        by_part: Mapping[int, list[object]] | None = None,
    ) -> None:
        self.runs_ahead = ahead
        self._slow = slow
        self._runner = HashingRunner(NUM_BLOCKS, 4, pool.adapter)
        self._mailbox = mailbox
        self._later = later
        self._faults = faults
        self._step = self._part = 0
        self._by_part = by_part
        self.plans: list[Plan] = []
        self.journal: list[str] = []

    def launches_fast(self, plan: Plan) -> bool:
        return not self._slow

    def begin(self, plan: Plan) -> InParts | None:
        if self._by_part is None:
            return None
        self._note(plan)
        self._tell("begin", self._step)
        return InParts(self._runner.begin(plan), self._compute_part)

    def _compute_part(self) -> None:
        self._part += 1
        for command in (self._by_part or {}).get(self._part, []):
            self._mailbox.command(command)  # type: ignore[arg-type]
        self._tell("part", self._part)

    def _note(self, plan: Plan) -> None:
        self._step += 1
        self.plans.append(plan)
        for command in self._later.get(self._step, []):
            self._mailbox.command(command)  # type: ignore[arg-type]

    def launch(self, plan: Plan) -> ComputedStep:
        self._note(plan)
        self._tell("launch", self._step)
        results = self._runner.run(plan)
        if any(what != "part" and step == self._step for what, step in self._faults):
            self._runner.corrupt_cache(plan)
        return ComputedStep(results, partial(self._tell, step=self._step))

    def _tell(self, what: str, step: int) -> None:
        self.journal.append(f"{what} {step}")
        if (what, step) in self._faults:
            raise self._faults[what, step]


class OneByteLoader:
    """An adapter loader that makes adapters of one byte, unless the host tier has the adapter."""

    def __init__(self, host: HostTier) -> None:
        self._host = host

    def __call__(self, digest: str) -> LoadedAdapter:
        adapter = self._host.get(digest) or LoadedAdapter(digest, {}, 1)
        self._host.put(adapter)
        return adapter


def run_core(
    *commands: object,
    later: dict[int, list[object]] | None = None,
    compiler: SlowCompiler | None = None,
    num_blocks: int = NUM_BLOCKS,
    ahead: bool = True,
    slow: bool = False,
    faults: Mapping[tuple[str, int], Exception] = MappingProxyType({}),
    journal: list[str] | None = None,
    by_part: Mapping[int, list[object]] | None = None,
    **limits: int,
) -> tuple[list[Event], list[Plan]]:
    """Run the commands; return everything the engine sends, and every step.

    by_part: as for `CommandsByStep`.
    journal: a list that the runner's journal is appended to.
    later: commands by the number of the step while which they come; None: there are none. compiler: the compiler of
    grammars; None: one that refuses all. ahead: True: steps are launched ahead of results. slow: True: launches take
    long on the host. faults: errors to raise, by the method and the step's number. limits: fields of `Limits`.
    """
    with contextlib.closing(Mailbox()) as mailbox:
        host = HostTier(max_bytes=8)
        pool = AdapterPool(OneByteLoader(host), 2, wake=lambda: mailbox.command(Wake()), executor=LoadsAtOnce())
        blocks = BlockManager(num_blocks, 4)
        clock = iter(range(1, 1_000_000)).__next__
        scheduler = Scheduler(blocks, pool, msgspec.structs.replace(LIMITS, **limits), lambda: float(clock()))
        runner = CommandsByStep(mailbox, pool, later or {}, ahead=ahead, slow=slow, faults=faults, by_part=by_part)
        compilations = Compilations(scheduler, compiler)
        statistics = Statistics(scheduler, blocks, pool, host, compilations)
        probes = Probes(pool, VOCAB, LIMITS.max_model_len)
        core = EngineCore(mailbox, scheduler, pool, runner, compilations, statistics, probes)
        for command in [*commands, Drain()]:
            mailbox.command(command)  # type: ignore[arg-type]
        core.run()
        assert blocks.num_free == num_blocks
        scheduler.check_integrity()
        if journal is not None:
            journal += runner.journal
        return mailbox.take_events(), runner.plans


def request(name: str = "r", max_tokens: int = 6, **changes: object) -> GenerateRequest:
    """Return a request with a predictable answer: the seed decides the text, ignore_eos its length."""
    fields = {"max_tokens": max_tokens, "seed": 5, "ignore_eos": True}
    sampling = fields | {key: changes.pop(key) for key in list(changes) if key in SamplingParams.__struct_fields__}
    prompt = {"request_id": name, "prompt_token_ids": PROMPT, "tenant": "t", "sampling": sampling}
    return msgspec.convert(prompt | changes, GenerateRequest)


def stats(events: list[Event]) -> EngineStats:
    """Return the last of the statistics among events."""
    return [event for event in events if isinstance(event, EngineStats)][-1]


def deltas(events: list[Event], name: str = "r") -> list[Delta]:
    steps = [event for event in events if isinstance(event, StepOutputs)]
    return [delta for step in steps for delta in step.deltas if delta.request_id == name]


def final(events: list[Event], name: str = "r") -> Final:
    return collect(events)[name].final


def text(events: list[Event], name: str = "r", index: int = 0) -> list[int]:
    return [token for delta in deltas(events, name) if delta.index == index for token in delta.token_ids]
