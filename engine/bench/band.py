"""The batch band: interactive requests beside a saturating batch, batch work alone, and bursts of both, by turns.

The best possible is the same work as interactive requests, as many as the engine runs at once. All runs are in one
engine, one after the other and over again, so that other work of the machine falls on all of them.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from statistics import median
from typing import Annotated

import msgspec

from engine.bench.drive import BenchEngine, Source, Trace, run_closed
from engine.bench.measures import Window, gaps_s, milliseconds, percentile, tokens_per_s, ttfts_s
from engine.bench.options import about
from engine.bench.report import Row, figure
from engine.bench.workload import Workload
from engine.config import EngineConfig, load_model_config
from engine.protocol import BatchTerms, GenerateRequest

AFTER_S = 0.2
"""Seconds after a burst by which batch work is to have the whole engine."""


class Options(msgspec.Struct, frozen=True):
    streams: Annotated[int, about("interactive requests under way beside the batch")] = 4
    max_num_seqs: Annotated[int, about("choices that the engine runs at once")] = 32
    seconds: Annotated[float, about("seconds of each run")] = 10.0
    margin: Annotated[float, about("seconds at the start of a run in which nothing is counted")] = 2.0
    repeat: Annotated[int, about("turns of all runs")] = 3
    prompt_tokens: Annotated[int, about("tokens of each prompt")] = 64
    new_tokens: Annotated[int, about("tokens of each completion")] = 48


class Turn(msgspec.Struct):
    """One run: the traces of interactive requests and of batch work, and the window in which they count."""

    interactive: list[Trace]
    batch: list[Trace]
    window: Window

    def tokens_per_s(self, *, prompts: bool = False) -> float:
        """Return tokens of completions a second, with prompts those of the requests that got their first token."""
        both = self.interactive + self.batch
        rate = tokens_per_s(both, self.window)
        if prompts:
            began = [trace for trace in both if trace.arrived_s and trace.arrived_s[0] in self.window]
            rate += sum(len(trace.request.prompt_token_ids) for trace in began) / self.window.seconds
        return rate


def measure(config: EngineConfig, options: Options) -> Iterator[Row]:
    config = msgspec.structs.replace(config, max_num_seqs=options.max_num_seqs, max_waiting=4096)
    make = _Requests(config, options)
    turns: dict[str, list[Turn]] = {}
    full = options.max_num_seqs
    with BenchEngine(config) as engine:
        for _ in range(options.repeat):
            for name, streams, lines in (
                ("best", full, 0),
                ("alone", options.streams, 0),
                ("beside", options.streams, 2 * full),
                ("batch", 0, 2 * full),
            ):
                turns.setdefault(name, []).append(_steady(engine, make, options, streams, lines))
                yield _row(name, turns[name][-1])
            turns.setdefault("bursts", []).append(_bursts(engine, make, options))
            yield _row("bursts", turns["bursts"][-1])
        stats = engine.stats
    yield from _figures(turns)
    computed = stats.batch_prompt_tokens_total + stats.batch_generation_tokens_total
    yield figure(
        "tokens of batch work computed again", stats.batch_recomputed_tokens_total / max(computed, 1), "<= 0.02"
    )


class _Requests:
    """Requests of both bands."""

    def __init__(self, config: EngineConfig, options: Options) -> None:
        self._workload = Workload(load_model_config(config.model_dir).vocab_size)
        self._options = options

    def interactive(self) -> GenerateRequest:
        prompt = self._workload.prompt(self._options.prompt_tokens)
        return self._workload.request(prompt, self._options.new_tokens)

    def line(self) -> GenerateRequest:
        return msgspec.structs.replace(self.interactive(), batch=BatchTerms())


def _steady(engine: BenchEngine, make: _Requests, options: Options, streams: int, lines: int) -> Turn:
    sources = [
        Source((request() for _ in itertools.count()), number)
        for request, number in ((make.interactive, streams), (make.line, lines))
        if number
    ]
    return _turn(run_closed(engine, sources, options.seconds), options)


def _bursts(engine: BenchEngine, make: _Requests, options: Options) -> Turn:
    """Keep the band fed; every other second as many interactive requests come as the engine runs at once."""
    traces, start_s = [engine.send(make.line()) for _ in range(2 * options.max_num_seqs)], time.monotonic()
    next_s = start_s + 1.0
    while time.monotonic() < start_s + options.seconds:
        if time.monotonic() >= next_s:
            traces += [engine.send(make.interactive()) for _ in range(options.max_num_seqs)]
            next_s = float("inf")
        for ended in engine.turn():
            if ended.request.batch is not None:
                traces.append(engine.send(make.line()))
        is_quiet = engine.num_under_way <= 2 * options.max_num_seqs
        if is_quiet and next_s == float("inf"):
            next_s = time.monotonic() + 1.0
    engine.abort_all()
    return _turn(traces, options)


def _turn(traces: list[Trace], options: Options) -> Turn:
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
    """Yield the figures of turns: medians of the ratios of each turn's runs."""

    def ratio(name: str, of: str) -> float:
        pairs = zip(turns[name], turns[of], strict=True)
        return median(one.tokens_per_s(prompts=True) / other.tokens_per_s(prompts=True) for one, other in pairs)

    def slower(percent: float, *, first: bool) -> float:
        measured = ttfts_s if first else gaps_s
        return median(
            percentile(measured(beside.interactive, beside.window), percent)
            / percentile(measured(alone.interactive, alone.window), percent)
            for beside, alone in zip(turns["beside"], turns["alone"], strict=True)
        )

    yield figure("batch alone, to the best", ratio("batch", "best"), ">= 0.93")
    yield figure("p99 gap beside the batch, to alone", slower(99, first=False), "<= 1.25")
    yield figure("p99 first token beside the batch, to alone", slower(99, first=True), "<= 1.25 and a step")
    yield figure("bursts and batch, to the best", ratio("bursts", "best"), ">= 0.9")
    rates = []
    for turn in turns["bursts"]:
        ends = _burst_ends(turn)
        windows = [Window(end_s + AFTER_S, end_s + 0.8) for end_s in ends if end_s + 0.8 < turn.window.end_s]
        rates += [tokens_per_s(turn.batch, window) for window in windows]
    full = median(tokens_per_s(turn.batch, turn.window) for turn in turns["batch"])
    if rates:
        yield figure(f"from {AFTER_S:g} s after a burst, to batch alone", median(rates) / full, ">= 0.95")


def _burst_ends(turn: Turn) -> list[float]:
    """Return when the last request of each burst ended."""
    sent = sorted({round(trace.sent_s, 1) for trace in turn.interactive})
    ended = sorted(trace.ended_s for trace in turn.interactive)
    return [
        max(at for at in ended if at < later) for later in [*sent[1:], float("inf")] if any(at < later for at in ended)
    ]
