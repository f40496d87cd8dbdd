"""Output tokens per second and time per token, by streams and adapters, beside transformers in the same run.

The two sides take turns, with prompts of the same lengths; the ratio is the figure to keep, since machines differ and
swing. All requests of a run are sent at once; adapters are resident; the first run of a combination is not counted.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from statistics import median
from typing import Annotated

import msgspec

from engine.bench.adapters import random_adapters
from engine.bench.drive import BenchEngine, Source, Trace, run_closed
from engine.bench.measures import milliseconds, tokens_per_s_of_batch
from engine.bench.options import option_help
from engine.bench.report import Row
from engine.bench.workload import Popularity, Workload
from engine.bench.yardstick import TransformersProcess
from engine.config import EngineConfig, load_model_config


class Options(msgspec.Struct, frozen=True):
    """The options of `python -m engine.bench throughput`."""

    streams: Annotated[tuple[int, ...], option_help("requests at once")] = (1, 8, 32)
    adapters: Annotated[tuple[int, ...], option_help("distinct adapters of these requests, 0 for the base")] = (0, 1, 8)
    distribution: Annotated[Popularity, option_help("choice of a request's adapter: each in turn, or by chance")] = (
        "turns"
    )
    rank: Annotated[int, option_help("rank of the adapters")] = 16
    prompt_tokens: Annotated[int, option_help("tokens of each prompt, its own")] = 65
    shared_prefix: Annotated[int, option_help("tokens before each prompt that all prompts share")] = 0
    new_tokens: Annotated[int, option_help("tokens of each completion")] = 64
    repeat: Annotated[int, option_help("runs of each combination, for both sides")] = 3


class Load(msgspec.Struct, frozen=True):
    """Requests that are sent at once."""

    streams: int
    adapters: int
    """Distinct adapters among the requests; 0 for the base."""
    distribution: Popularity = "turns"
    prompt_tokens: int = 65
    """Tokens of each prompt beside the shared prefix."""
    shared_prefix: int = 0
    """Tokens that begin every prompt."""
    new_tokens: int = 64
    """Tokens of each completion."""

    @property
    def yardstick_key(self) -> tuple[int, int, int]:
        """The key of loads that are the same to transformers, which knows no adapters and shares no prefix."""
        return self.streams, self.shared_prefix + self.prompt_tokens, self.new_tokens


def measure(config: EngineConfig, options: Options, yardstick: TransformersProcess | None = None) -> Iterator[Row]:
    """Yield a row for each number of streams and of adapters. yardstick: as for `compare`."""
    loads = [
        Load(
            num_streams,
            num_adapters,
            options.distribution,
            options.prompt_tokens,
            options.shared_prefix,
            options.new_tokens,
        )
        for num_streams in options.streams
        for num_adapters in options.adapters
    ]
    for load, row in compare(config, loads, rank=options.rank, repeat=options.repeat, yardstick=yardstick):
        yield {"streams": load.streams, "adapters": load.adapters} | row


def compare(
    config: EngineConfig, loads: Sequence[Load], *, rank: int, repeat: int, yardstick: TransformersProcess | None = None
) -> Iterator[tuple[Load, Row]]:
    """Yield every load beside the yardstick, on one engine in which all adapters are resident.

    yardstick: one of the same model that runs already; None: one is started for these loads alone. rank: the rank of
    the adapters. repeat: how often each load is measured.
    """
    digests = random_adapters(config, max(load.adapters for load in loads), rank)
    config = msgspec.structs.replace(
        config,
        max_adapters=max(config.max_adapters, len(digests)),
        max_num_seqs=max(config.max_num_seqs, *(load.streams for load in loads)),
        adapter_device_bytes=config.adapter_device_bytes or 1 << 32,
    )
    workload = Workload(load_model_config(config.model_dir).vocab_size)

    def prompts(load: Load) -> list[list[int]]:
        prefix = workload.prompt(load.shared_prefix)
        return [prefix + workload.prompt(load.prompt_tokens) for _ in range(load.streams)]

    def run(engine: BenchEngine, load: Load) -> list[Trace]:
        adapters = workload.pick(digests[: load.adapters], load.distribution)
        requests = [workload.request(prompt, load.new_tokens, adapter=next(adapters)) for prompt in prompts(load)]
        return run_closed(engine, [Source(iter(requests), load.streams)])

    with ExitStack() as stack:
        beside = yardstick or stack.enter_context(TransformersProcess(config))
        engine = stack.enter_context(BenchEngine(config, preload=digests))
        for _, group in itertools.groupby(loads, key=lambda load: load.yardstick_key):
            alike = list(group)
            runs: list[list[list[Trace]]] = [[] for _ in alike]
            references: list[float] = []
            beside.tokens_per_s(prompts(alike[0]), alike[0].new_tokens)
            for load in alike:
                run(engine, load)
            for _ in range(repeat):
                references.append(beside.tokens_per_s(prompts(alike[0]), alike[0].new_tokens))
                for load, done in zip(alike, runs, strict=True):
                    done.append(run(engine, load))
            for load, done in zip(alike, runs, strict=True):
                yield load, _row(done, references)


def _row(runs: list[list[Trace]], references: list[float]) -> Row:
    rates = [tokens_per_s_of_batch(traces) for traces in runs]
    traces = [trace for run in runs for trace in run]
    return {
        "tokens_per_s": round(median(rates), 1),
        "best": round(max(rates), 1),
        "transformers_base": round(median(references), 1),
        "its_best": round(max(references), 1),
        "ratio": round(median(rates) / median(references), 2),
        "ratio_of_best": round(max(rates) / max(references), 2),
        "ttft_ms": milliseconds([trace.ttft_s for trace in traces], 50),
        "tpot_ms": milliseconds([_time_per_token_s(trace) for trace in traces], 50),
    }


def _time_per_token_s(trace: Trace) -> float:
    return (trace.arrived_s[-1] - trace.arrived_s[0]) / max(len(trace.arrived_s) - 1, 1)
