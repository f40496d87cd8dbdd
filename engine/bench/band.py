"""The batch band: interactive requests beside a saturating batch, batch work alone, and bursts of both: PASS or FAIL.

The best possible is the same work as interactive requests, as many as the engine runs at once. All runs are in one
engine, by turns and over again, so that other work of the machine falls on all of them; a ratio is the median of the
turns. Matrices are those that `auto` gives an engine with this model on this machine, unless `--quantization` says
otherwise; the first line tells which. Run this on a machine that does nothing else.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from statistics import median
from typing import Annotated

import msgspec

from engine.bench.drive import BenchEngine, Source, Trace, run_closed
from engine.bench.measures import Window, gaps_s, milliseconds, percentile, tokens_per_s, ttfts_s
from engine.bench.options import option_help
from engine.bench.pairs import Bound, Pair, ratio_row, value_row
from engine.bench.report import Row
from engine.bench.workload import Workload
from engine.config import EngineConfig, load_model_config
from engine.protocol import BatchTerms, GenerateRequest
from engine.setup import with_settled_quantization

AFTER_S = 0.2
"""Seconds from the end of a burst of interactive requests until batch work should have the whole engine again."""

LONGEST_ALONE_S = 0.050
ONE_ROW_STEPS = 2
"""The longest step of batch work alone, as a multiple of a step of one sequence, where that exceeds LONGEST_ALONE_S."""


class Options(msgspec.Struct, frozen=True):
    """The options of `python -m engine.bench band`."""

    streams: Annotated[int, option_help("interactive requests under way beside the batch")] = 4
    max_num_seqs: Annotated[int, option_help("choices that the engine runs at once")] = 32
    seconds: Annotated[float, option_help("seconds of each run")] = 20.0
    margin: Annotated[float, option_help("seconds at the start of a run in which nothing is counted")] = 1.5
    repeat: Annotated[int, option_help("turns of all runs")] = 3
    prompt_tokens: Annotated[int, option_help("tokens of each prompt")] = 64
    new_tokens: Annotated[
        int, option_help("tokens of each completion on average; each has half to one and a half of them")
    ] = 48


class Turn(msgspec.Struct):
    """One run: the traces of interactive requests and of batch work, and the window in which they count."""

    interactive: list[Trace]
    batch: list[Trace]
    window: Window

    def tokens_per_s(self, *, prompts: bool = False) -> float:
        """Return the tokens of completions per second.

        prompts: True adds the tokens of the prompts whose requests got their first token.
        """
        both = self.interactive + self.batch
        rate = tokens_per_s(both, self.window)
        if prompts:
            began = [trace for trace in both if trace.arrived_s and trace.arrived_s[0] in self.window]
            rate += sum(len(trace.request.prompt_token_ids) for trace in began) / self.window.seconds
        return rate


def measure(config: EngineConfig, options: Options) -> Iterator[Row]:
    """Yield the rows of the batch band."""
    config = msgspec.structs.replace(
        with_settled_quantization(config), max_num_seqs=options.max_num_seqs, max_waiting=4096
    )
    make = _Requests(config, options)
    turns: dict[str, list[Turn]] = {}
    full = options.max_num_seqs
    with BenchEngine(config) as engine:
        for _ in range(options.repeat):
            for name, streams, lines in (
                ("one", 1, 0),
                ("alone", options.streams, 0),
                ("beside", options.streams, 2 * full),
                ("best", full, 0),
                ("batch", 0, 2 * full),
            ):
                turns.setdefault(name, []).append(_steady(engine, make, options, streams, lines))
                yield _row(name, turns[name][-1])
            turns.setdefault("bursts", []).append(_bursts(engine, make, options))
            yield _row("bursts", turns["bursts"][-1])
        stats = engine.stats
    yield from _figures(turns)
    computed = stats.batch_prompt_tokens_total + stats.batch_generation_tokens_total
    lost = 100 * stats.batch_recomputed_tokens_total / max(computed, 1)
    yield value_row("bursts", "percent of the tokens of batch work that were computed again", lost, Bound(2.0))


class _Requests:
    """Makes interactive requests and batch work. Lengths vary, so that requests do not come and go in step."""

    def __init__(self, config: EngineConfig, options: Options) -> None:
        self._workload = Workload(load_model_config(config.model_dir).vocab_size)
        self._options = options
        self._lengths = random.Random(0)  # noqa: S311

    def interactive(self) -> GenerateRequest:
        prompt = self._workload.prompt(self._options.prompt_tokens)
        usual = self._options.new_tokens
        return self._workload.request(prompt, self._lengths.randint(usual // 2, usual * 3 // 2))

    def batch(self) -> GenerateRequest:
        return msgspec.structs.replace(self.interactive(), batch=BatchTerms())


def _steady(engine: BenchEngine, make: _Requests, options: Options, streams: int, lines: int) -> Turn:
    wanted = ((make.interactive, streams), (make.batch, lines))
    sources = [Source(iter(request, None), number) for request, number in wanted if number]
    return _turn_of(run_closed(engine, sources, options.seconds), options)


def _bursts(engine: BenchEngine, make: _Requests, options: Options) -> Turn:
    """Keep the batch band busy while bursts of interactive requests come and go, and return the turn's traces.

    In a burst as many interactive requests run as the engine runs at once. Each burst is followed by as long a time
    without interactive requests.
    """
    traces, start_s = [engine.send(make.batch()) for _ in range(2 * options.max_num_seqs)], time.monotonic()
    burst: list[Trace] = []
    next_s = began_s = start_s + options.margin / 2
    while time.monotonic() < start_s + options.seconds:
        now_s = time.monotonic()
        if not burst and now_s >= next_s:
            burst, began_s = [engine.send(make.interactive()) for _ in range(options.max_num_seqs)], now_s
            traces += burst
        for ended in engine.turn():
            if ended.request.batch is not None:
                traces.append(engine.send(make.batch()))
        if burst and all(trace.final is not None for trace in burst):
            burst, next_s = [], 2 * time.monotonic() - began_s
    engine.abort_all()
    return _turn_of(traces, options)


def _turn_of(traces: list[Trace], options: Options) -> Turn:
    start_s = traces[0].sent_s
    batch = [trace for trace in traces if trace.request.batch is not None]
    interactive = [trace for trace in traces if trace.request.batch is None]
    return Turn(interactive, batch, Window(start_s + options.margin, start_s + options.seconds))


def _row(name: str, turn: Turn) -> Row:
    first, gaps = ttfts_s(turn.interactive, turn.window), gaps_s(turn.interactive, turn.window)
    return {
        "run": name,
        "ttft p50": milliseconds(first, 50),
        "p99": milliseconds(first, 99),
        "gap p50": milliseconds(gaps, 50),
        "gap p99": milliseconds(gaps, 99),
        "tokens/s": round(turn.tokens_per_s(), 1),
        "and prompts": round(turn.tokens_per_s(prompts=True), 1),
    }


def _figures(turns: dict[str, list[Turn]]) -> Iterator[Row]:
    def rates(name: str, of: str) -> list[Pair]:
        return [
            Pair(one.tokens_per_s(prompts=True), other.tokens_per_s(prompts=True))
            for one, other in zip(turns[name], turns[of], strict=True)
        ]

    yield ratio_row("alone", "tokens/s of batch work alone, to the best", rates("batch", "best"), Bound(0.93, True))
    gaps, firsts = [], []
    for one, beside, alone in zip(turns["one"], turns["beside"], turns["alone"], strict=True):
        gaps.append(Pair(*(_p99_ms(gaps_s(turn.interactive, turn.window)) for turn in (beside, alone))))
        step_ms = 1e3 * max(LONGEST_ALONE_S, ONE_ROW_STEPS * percentile(gaps_s(one.interactive, one.window), 50))
        first, own = (_p99_ms(ttfts_s(turn.interactive, turn.window)) for turn in (beside, alone))
        firsts.append(Pair(first - step_ms, own))
    yield ratio_row("beside", "p99 ms between tokens beside the batch, to alone", gaps, Bound(1.25))
    yield ratio_row("beside", "p99 ms to the first token less a step, to alone", firsts, Bound(1.25))
    yield ratio_row("bursts", "tokens/s under bursts, to the best", rates("bursts", "best"), Bound(0.9, True))
    full = median(tokens_per_s(turn.batch, turn.window) for turn in turns["batch"])
    after = [tokens_per_s(turn.batch, window) for turn in turns["bursts"] for window in _after_bursts(turn)]
    if after:
        case = f"tokens/s of batch work from {AFTER_S:g} s after a burst, to alone"
        yield ratio_row("bursts", case, [Pair(median(after), full)], Bound(0.95, True))


def _p99_ms(seconds: list[float]) -> float:
    return 1e3 * percentile(seconds, 99)


def _after_bursts(turn: Turn) -> list[Window]:
    """Return the times between two bursts, from AFTER_S after the end of the first one."""
    bursts: dict[float, float] = {}
    if not turn.interactive:
        return []
    sent_s = -1.0
    for trace in turn.interactive:  # in the order in which they were sent, those of a burst at once
        sent_s = trace.sent_s if trace.sent_s - sent_s > AFTER_S else sent_s
        bursts[sent_s] = max(bursts.get(sent_s, 0.0), trace.ended_s)
    starts = [*list(bursts)[1:], turn.window.end_s]
    windows = [Window(end_s + AFTER_S, later) for end_s, later in zip(bursts.values(), starts, strict=True)]
    return [window for window in windows if window.seconds > 2 * AFTER_S]
