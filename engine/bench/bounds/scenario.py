"""The engine's bounds on a CPU with the demo model, each with what was measured and PASS or FAIL.

Sides take turns in each round, and a ratio is the median of the rounds. The column `other` is llama.cpp with the same
file, our base beside our adapters, or the engine without busy processes. Figures in ms are of a token, a prompt or all
products of a step. Run this on a machine that does nothing else.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Annotated, NamedTuple

import msgspec
import numpy as np

from engine.bench.adapters import random_adapters
from engine.bench.bounds.memory import measure_memory
from engine.bench.drive import BenchEngine, busy_processes
from engine.bench.llamacpp.gguf import gguf_file
from engine.bench.llamacpp.peer import Peer
from engine.bench.llamacpp.turns import Turns, rate, token_ms
from engine.bench.options import option_help
from engine.bench.pairs import Bound, Pair, ratio_row, rounds, value_row
from engine.bench.report import Row
from engine.bench.workload import Workload
from engine.config import EngineConfig, load_model_config
from engine.hardware import num_threads
from kernels.bench.cpu_linear import product_times

LINEAR_BOUNDS_MS = {1: 7.0, 8: 16.0, 32: 55.0}
LINEAR_BUSY = {1: 2.5, 8: 2.0, 32: 2.0}
BUSY_ONE, BUSY_EACH, BUSY_GAP = 0.45, 0.35, 6.0
LARGEST_MB = 600.0
LOADED_S = 1.0
"""Seconds until busy processes have started and compute."""


class Options(msgspec.Struct, frozen=True):
    """The options of `python -m engine.bench bounds`."""

    blocks: Annotated[str, option_help("blocks of llama.cpp's file: Q4_1, Q8_0")] = "Q4_1"
    threads: Annotated[int, option_help("threads of each side, 0 for one for each processor")] = 0
    rank: Annotated[int, option_help("rank of the adapters")] = 16
    streams: Annotated[tuple[int, ...], option_help("requests at once, beside busy processes")] = (1, 8, 32)
    many: Annotated[int, option_help("streams, each with its own adapter")] = 8
    prompts: Annotated[tuple[int, ...], option_help("tokens of lone prompts")] = (32, 64, 128, 256, 512)
    prompt_tokens: Annotated[int, option_help("tokens of each prompt of streams")] = 65
    new_tokens: Annotated[int, option_help("tokens of each completion")] = 64
    requests: Annotated[int, option_help("requests before memory is read")] = 100
    repeat: Annotated[int, option_help("rounds of each pair")] = 5
    parts: Annotated[tuple[str, ...], option_help("parts to run, of linears, peer, busy, memory")] = (
        "linears",
        "peer",
        "busy",
        "memory",
    )


class _Rig(NamedTuple):
    options: Options
    turns: Turns
    digests: list[str]


def measure(config: EngineConfig, options: Options) -> Iterator[Row]:
    """Yield a row for each bound."""
    if "linears" in options.parts:
        yield from _linears(options)
    digests = random_adapters(config, options.many, options.rank)
    config = msgspec.structs.replace(config, num_threads=options.threads)
    if {"peer", "busy"} & set(options.parts):
        workload = Workload(load_model_config(config.model_dir).vocab_size)
        with BenchEngine(config, preload=digests) as engine:
            rig = _Rig(options, Turns(engine, workload, options.prompt_tokens, options.new_tokens), digests)
            if "peer" in options.parts:
                yield from _peer_rows(rig)
            if "busy" in options.parts:
                yield from _busy_rows(rig)
    if "memory" in options.parts:
        memory = measure_memory(config, options.requests, options.prompt_tokens, options.new_tokens)
        yield value_row("9", "MB resident after the start", memory.started / 1e6, Bound(LARGEST_MB))
        yield value_row("9", f"MB resident after {options.requests} requests", memory.used / 1e6, Bound(LARGEST_MB))


def _linears(options: Options) -> Iterator[Row]:
    rows = tuple(LINEAR_BOUNDS_MS)
    alone = product_times(rows, options.repeat)
    with busy_processes(1, LOADED_S):
        busy = product_times(rows, options.repeat)
    for number, bound in LINEAR_BOUNDS_MS.items():
        yield value_row("1", f"ms of all products, {number} rows", median(alone[number]), Bound(bound))
    for number, most in LINEAR_BUSY.items():
        pairs = [Pair(*pair) for pair in zip(busy[number], alone[number], strict=True)]
        yield ratio_row("1", f"ms of all products beside a busy process, {number} rows", pairs, Bound(most))


def _peer_rows(rig: _Rig) -> Iterator[Row]:
    options, turns, digests = rig
    threads = num_threads(options.threads)
    many = f"tokens/s, {options.many} streams over {len(digests)} adapters, beside llama.cpp's base"
    with tempfile.TemporaryDirectory() as folder:
        file = gguf_file(options.blocks, Path(folder))
        with Peer(file, threads, 1) as peer:
            found = rounds(lambda: turns.token_ms_beside(peer, 1, []), options.repeat)
            yield ratio_row("2", "ms a token, one stream, beside llama.cpp", found, Bound(1.15))
            for num_tokens in options.prompts:
                found = rounds(lambda: turns.prefill_ms_beside(peer, num_tokens), options.repeat)  # noqa: B023
                yield ratio_row("5", f"ms of a prompt of {num_tokens}, beside llama.cpp", found, Bound(1.2))
            # The requests run one after the other, as llama.cpp computes requests of different adapters, here without
            # their own cost.
            found = rounds(lambda: turns.rates_beside(peer, options.many, digests), options.repeat)
            yield ratio_row("3", f"{many}, one by one", found, Bound(2.0, is_least=True))
        found = rounds(lambda: Pair(token_ms(turns.ours(1, digests[:1])), token_ms(turns.ours(1, []))), options.repeat)
        yield ratio_row("2", "ms a token, one stream with an adapter, beside our base", found, Bound(1.15))
        with Peer(file, threads, options.many) as peer:
            found = rounds(lambda: turns.rates_beside(peer, options.many, digests), options.repeat)
            yield ratio_row("3", many, found, Bound(1.0, is_least=True))


def _busy_rows(rig: _Rig) -> Iterator[Row]:
    options, turns, _ = rig
    for busy, least in ((1, BUSY_ONE), (len(os.sched_getaffinity(0)), BUSY_EACH)):
        for streams in options.streams:
            rates, gaps = [], []
            for _ in range(options.repeat):
                turns.ours(streams, [])  # threads come back
                alone = turns.ours(streams, [])
                with busy_processes(busy, LOADED_S):
                    turns.ours(streams, [])  # threads give way
                    beside = turns.ours(streams, [])
                rates.append(Pair(rate(beside), rate(alone)))
                longest = [
                    float(np.percentile([gap for trace in side for gap in trace.gaps_s], 99))
                    for side in (beside, alone)
                ]
                gaps.append(Pair(1e3 * longest[0], 1e3 * longest[1]))
            case = f"{streams} streams beside {busy} busy"
            yield ratio_row("4", f"tokens/s, {case}", rates, Bound(least, is_least=True))
            yield ratio_row("4", f"p99 ms between tokens, {case}", gaps, Bound(BUSY_GAP))
