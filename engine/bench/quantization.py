"""Measure output tokens per second with 8-bit matrices beside the base model's own.

Both are measured alone and beside a busy process.

Two engines take turns in each round, at the same streams; the ratios are the figures to keep, since machines differ
and swing.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Annotated, Literal

import msgspec

from engine.bench.adapters import random_adapters
from engine.bench.drive import BenchEngine, Source, busy_processes, run_closed
from engine.bench.measures import tokens_per_s_of_batch
from engine.bench.options import option_help
from engine.bench.report import Row
from engine.bench.workload import Workload
from engine.config import EngineConfig, load_model_config

FORMATS: tuple[Literal["none", "int8"], ...] = ("none", "int8")


class Options(msgspec.Struct, frozen=True):
    """The options of `python -m engine.bench quantization`."""

    streams: Annotated[tuple[int, ...], option_help("requests at once")] = (1, 8)
    adapters: Annotated[tuple[int, ...], option_help("distinct adapters of these requests, 0 for the base")] = (0, 8)
    rank: Annotated[int, option_help("rank of the adapters")] = 16
    prompt_tokens: Annotated[int, option_help("tokens of each prompt")] = 65
    new_tokens: Annotated[int, option_help("tokens of each completion")] = 64
    repeat: Annotated[int, option_help("rounds of each combination")] = 3
    busy: Annotated[int, option_help("busy processes beside the second half, 0 for none")] = 1
    settle_s: Annotated[float, option_help("seconds until the engines' threads are used to the busy processes")] = 3.0


def measure(config: EngineConfig, options: Options) -> Iterator[Row]:
    """Yield a row for each number of streams and of adapters."""
    digests = random_adapters(config, max(options.adapters), options.rank)
    config = msgspec.structs.replace(config, adapter_device_bytes=config.adapter_device_bytes or 1 << 32)
    workload = Workload(load_model_config(config.model_dir).vocab_size)

    def run(engine: BenchEngine, streams: int, adapters: int) -> float:
        prompts = [workload.prompt(options.prompt_tokens) for _ in range(streams)]
        picked = workload.pick(digests[:adapters], "turns")
        requests = [workload.request(prompt, options.new_tokens, adapter=next(picked)) for prompt in prompts]
        return tokens_per_s_of_batch(run_closed(engine, [Source(iter(requests), streams)]))

    plain, quantized = (msgspec.structs.replace(config, quantization=each) for each in FORMATS)
    with BenchEngine(plain, preload=digests) as first, BenchEngine(quantized, preload=digests) as second:
        for busy in dict.fromkeys((0, options.busy)):
            with busy_processes(busy, options.settle_s if busy else 0.0):
                for streams in options.streams:
                    for adapters in options.adapters:
                        run(first, streams, adapters), run(second, streams, adapters)  # warms up
                        rounds = [
                            (run(first, streams, adapters), run(second, streams, adapters))
                            for _ in range(options.repeat)
                        ]
                        yield {"busy": busy, "streams": streams, "adapters": adapters} | _row(rounds)


def _row(rounds: list[tuple[float, float]]) -> Row:
    row: Row = {}
    for name, rates in zip(FORMATS, zip(*rounds, strict=True), strict=True):
        row |= {name: round(median(rates), 1), f"{name}_best": round(max(rates), 1)}
    return row | {"ratio": round(median(quantized / plain for plain, quantized in rounds), 2)}
