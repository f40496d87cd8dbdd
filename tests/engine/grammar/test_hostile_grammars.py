"""Grammars made to hurt, many at once and of several tenants, beside running decodes: no step waits 50 ms for them.

The stepping loop, the scheduler, the sampler and the compiler are the engine's own; in place of the decoder there is a
head of random weights: steps take as many threads as a model's, but only some milliseconds, so that a delay shows.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import closing

import numpy as np
import pytest
import torch

from engine.compilations import Compilations
from engine.core import EngineCore
from engine.grammar.compiler import GrammarCompiler
from engine.grammar.limits import MAX_WAITING_PER_TENANT
from engine.lora.layer import LoadedAdapter
from engine.lora.loader import HostTier
from engine.lora.pool import AdapterPool
from engine.mailbox import Drain, Mailbox, Wake
from engine.probes import Probes
from engine.protocol import Abort, Grammar
from engine.sampling.outputs import rows_of
from engine.sampling.sampler import Sampler
from engine.scheduling.block_manager import BlockManager
from engine.scheduling.limits import Limits
from engine.scheduling.scheduler import Scheduler
from engine.sequence import ChunkResult, Plan
from engine.statistics import Statistics
from tests.demo import demo_model_dir
from tests.engine.grammar.grammars import EOS, VOCAB_SIZE, schema, worker_pids
from tests.engine.grammar.hostile_grammars import COMPILES, NEVER_COMPILES
from tests.engine.harness import Answer, collect, greedy
from tests.engine.steps import ComputedStep
from tests.installation.processes import frozen

MAX_DELAY_S = 0.050
HIDDEN = 576
LIMITS = Limits(
    max_num_seqs=16,
    max_batched_tokens=512,
    max_waiting=512,
    max_model_len=1 << 20,
    vocab_size=VOCAB_SIZE,
    eos_token_ids=frozenset(EOS),
    token_bytes=1,
)
GOOD = schema({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})


class HeadAlone:
    """A model runner that returns noise as hidden states.

    step_ends_s: the end of every step that the watched request took part in.
    """

    def __init__(self) -> None:
        random = torch.Generator().manual_seed(0)
        self._hidden = torch.randn(64, HIDDEN, generator=random)
        self._head = torch.randn(HIDDEN, VOCAB_SIZE, generator=random) / HIDDEN**0.5
        self._sampler = Sampler(EOS)
        self.step_ends_s: list[float] = []

    runs_ahead = False

    def launches_fast(self, plan: Plan) -> bool:
        return True

    def begin(self, plan: Plan) -> None:
        """Return None: a step cannot pause."""

    def launch(self, plan: Plan) -> ComputedStep:
        wanted = rows_of(plan.chunks)
        rows = [row for each in wanted for row in each.sampling_rows]
        logits = self._hidden[[row.position % len(self._hidden) for row in rows]] @ self._head
        sampled = iter(self._sampler.choose(logits, rows) if rows else [])
        if any(chunk.sequence.request_id == "watched" for chunk in plan.decodes):
            self.step_ends_s.append(time.monotonic())
        return ComputedStep([ChunkResult([next(sampled) for _ in each.sampled]) for each in wanted])


class SteppingEngine:
    """An engine on a thread of its own, and a watched request that never ends."""

    def __init__(self) -> None:
        self._mailbox = Mailbox()
        self._runner = HeadAlone()
        compiler = GrammarCompiler(demo_model_dir(), VOCAB_SIZE, EOS, self._wake)
        blocks = BlockManager(1 << 17, 16)
        pool = AdapterPool(lambda digest: LoadedAdapter(digest, {}, 1), 2, self._wake)
        scheduler = Scheduler(blocks, pool, LIMITS, time.monotonic)
        compilations = Compilations(scheduler, compiler)
        statistics = Statistics(scheduler, blocks, pool, HostTier(max_bytes=0), compilations)
        probes = Probes(pool, VOCAB_SIZE, LIMITS.max_model_len)
        core = EngineCore(self._mailbox, scheduler, pool, self._runner, compilations, statistics, probes)
        self._thread = threading.Thread(target=core.run)
        self._thread.start()
        self.answers: dict[str, Answer] = {}
        self._mailbox.command(greedy("watched", [1], 1_000_000, ignore_eos=True, tenant="watched", num_logprobs=None))
        self.ask("warm", GOOD, "watched")
        self.wait("warm")

    def _wake(self) -> None:
        self._mailbox.command(Wake())

    def ask(self, name: str, grammar: Grammar, tenant: str, max_tokens: int = 40) -> None:
        sampling = {"temperature": 1.0, "seed": len(self.answers), "num_logprobs": None, "grammar": grammar}
        self._mailbox.command(greedy(name, [1, 2, 3], max_tokens, tenant=tenant, **sampling))

    def wait(self, *names: str) -> list[Answer]:
        """Return the answers to the named requests, once all have ended."""
        deadline_s = time.monotonic() + 200
        while not all(name in self.answers for name in names):
            assert time.monotonic() < deadline_s, set(names) - set(self.answers)
            time.sleep(0.01)
            for name, answer in collect(self._mailbox.take_events()).items():
                if answer.finals:
                    self.answers[name] = answer
        return [self.answers[name] for name in names]

    def abort(self, *names: str) -> None:
        for name in names:
            self._mailbox.command(Abort(name))

    def longest_delay_s(self, since_s: float) -> float:
        """Return the longest delay of a token of the watched request: the longest gap between tokens less the median
        gap."""
        gaps_s = np.diff([end_s for end_s in self._runner.step_ends_s if end_s >= since_s])
        return float(gaps_s.max() - np.median(gaps_s))

    def close(self) -> None:
        self.abort("watched")
        self._mailbox.command(Drain())
        self._thread.join()
        self._mailbox.close()


def longest_delay_s(asked: dict[str, tuple[str, Grammar]], kill_workers: bool) -> float:
    """Return the longest delay of a token beside these requests, and check each answer against its grammar.

    asked: tenant and grammar by the request's name. The best of three runs, since the machine has other work too.
    """
    delays_s: list[float] = []
    while len(delays_s) < 3 and min(delays_s, default=1.0) >= MAX_DELAY_S:
        with closing(SteppingEngine()) as engine:
            since_s = time.monotonic()
            for name, (tenant, grammar) in asked.items():
                engine.ask(name, grammar, tenant)
            for pid in worker_pids() if kill_workers else ():
                os.kill(pid, signal.SIGKILL)
            answers = engine.wait(*asked)
            delays_s.append(engine.longest_delay_s(since_s))
        for (name, (_, grammar)), answer in zip(asked.items(), answers, strict=True):
            error = answer.final.error
            if error is None:
                assert grammar not in NEVER_COMPILES.values(), name
            else:
                assert error.code == "invalid_request", (name, error)
    print("longest delay of a token, ms:", [round(delay_s * 1e3) for delay_s in delays_s])
    return min(delays_s)


@pytest.mark.parametrize("kill_workers", [False, True], ids=["", "killed"])
def test_no_step_waits_for_hostile_grammars(kill_workers: bool, full: bool) -> None:
    """Two tenants send each hostile grammar at once."""
    if not full:
        pytest.skip("measures time: runs with --full")
    grammars = COMPILES | NEVER_COMPILES
    asked = {f"{t}: {name}": (f"hostile {t}", grammars[name]) for t in range(2) for name in grammars}
    assert longest_delay_s(asked, kill_workers) < MAX_DELAY_S


def test_many_costly_completions_at_once_share_a_steps_time(full: bool) -> None:
    """Each grammar is within its own bounds; 15 of them in one step would take a tenth of a second."""
    if not full:
        pytest.skip("measures time: runs with --full")
    names = [(name, number) for number in range(5) for name in ("doubling rules", "ambiguous", "exponential regex")]
    asked = {f"{name} {number}": ("hostile", COMPILES[name]) for name, number in names}
    assert longest_delay_s(asked, kill_workers=False) < MAX_DELAY_S


def test_another_tenants_grammars_come_through_a_flood() -> None:
    """At most one hostile grammar goes first, and the flood fills its own tenant's queue alone."""
    with closing(SteppingEngine()) as engine:
        with frozen(*worker_pids()):  # so that all of them are there before the second one is compiled
            for number in range(200):
                slow = Grammar("lark", f"start: T\nT: ~/(.*a.{{12}}b{number})*/")
                engine.ask(f"flood {number}", slow, "hostile")
            engine.ask("good", GOOD, "good")
        (answer,) = engine.wait("good")
        finals = [engine.answers[name].final for name in engine.answers if name.startswith("flood")]
        refused = [final.error for final in finals if final.error is not None]
        assert answer.final.finish_reason == "stop"
        assert len(finals) - len(refused) <= 2
        # One is being compiled, and two have been: these have ended, or run on where the machine is busy.
        assert len(refused) >= 200 - MAX_WAITING_PER_TENANT - 1 - 2
        assert all(error.code == "queue_full" and error.retry_after_s for error in refused)
        engine.abort(*(f"flood {number}" for number in range(200)))
