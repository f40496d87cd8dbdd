"""Output tokens per second and time per token, by streams and adapters, beside transformers in the same run.

The two sides take turns, with prompts of the same lengths; the ratio is the figure to keep, since machines differ and
swing. All requests of a run are sent at once; adapters are resident; the first run of a combination is not counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Annotated

import msgspec

from engine.bench.adapters import random_adapters
from engine.bench.drive import BenchEngine, Source, Trace, run_closed
from engine.bench.measures import milliseconds, tokens_per_s_of_batch
from engine.bench.options import about
from engine.bench.report import Row
from engine.bench.workload import Popularity, Workload
from engine.bench.yardstick import Yardstick
from engine.config import EngineConfig, load_model_config


class Options(msgspec.Struct, frozen=True):
    streams: Annotated[tuple[int, ...], about("requests at once")] = (1, 8, 32)
    adapters: Annotated[tuple[int, ...], about("distinct adapters among them, 0 for the base")] = (0, 1, 8)
    distribution: Annotated[Popularity, about("which adapter a request names: each in turn, or by chance")] = "turns"
    rank: Annotated[int, about("of the adapters")] = 16
    prompt_tokens: Annotated[int, about("of each prompt, its own")] = 65
    shared_prefix: Annotated[int, about("tokens before these that all prompts share")] = 0
    new_tokens: Annotated[int, about("of each completion")] = 64
    repeat: Annotated[int, about("runs of each combination, for both sides")] = 3


def measure(config: EngineConfig, options: Options) -> Iterator[Row]:
    digests = random_adapters(config, max(options.adapters), options.rank)
    config = msgspec.structs.replace(
        config,
        max_adapters=max(config.max_adapters, len(digests)),
        max_num_seqs=max(config.max_num_seqs, *options.streams),
    )
    workload = Workload(load_model_config(config.model_dir).vocab_size)
    prefix = workload.prompt(options.shared_prefix)

    def prompts(num_streams: int) -> list[list[int]]:
        return [prefix + workload.prompt(options.prompt_tokens) for _ in range(num_streams)]

    def run(engine: BenchEngine, num_streams: int, num_adapters: int) -> list[Trace]:
        adapters = workload.pick(digests[:num_adapters], options.distribution)
        requests = [
            workload.request(prompt, options.new_tokens, adapter=next(adapters)) for prompt in prompts(num_streams)
        ]
        return run_closed(engine, [Source(iter(requests), num_streams)])

    with Yardstick(config) as yardstick, BenchEngine(config, preload=digests) as engine:
        for num_streams in options.streams:
            runs: dict[int, list[list[Trace]]] = {num_adapters: [] for num_adapters in options.adapters}
            references: list[float] = []
            yardstick.tokens_per_s(prompts(num_streams), options.new_tokens)
            for num_adapters in options.adapters:
                run(engine, num_streams, num_adapters)
            for _ in range(options.repeat):
                references.append(yardstick.tokens_per_s(prompts(num_streams), options.new_tokens))
                for num_adapters, done in runs.items():
                    done.append(run(engine, num_streams, num_adapters))
            for num_adapters, done in runs.items():
                yield {"streams": num_streams, "adapters": num_adapters} | _row(done, references)


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
