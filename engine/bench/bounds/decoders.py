"""A step of the model that transformers computes, beside the same step by the engine's own code in PyTorch.

Two engines take turns in each round, with the numbers of the files (no integers). Figures are in ms: the median of a
batch's decode steps, or the time of a lone prompt. Run this on a machine that does nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Annotated

import msgspec

from engine.bench.adapters import random_adapters
from engine.bench.drive import BenchEngine, Source, run_closed
from engine.bench.options import option_help
from engine.bench.pairs import Bound, Pair, ratio_row, rounds
from engine.bench.report import Row
from engine.bench.workload import Workload
from engine.config import EngineConfig, load_model_config

LARGEST_RATIO = 1.3


class Options(msgspec.Struct, frozen=True):
    """The options of `python -m engine.bench decoders`."""

    streams: Annotated[tuple[int, ...], option_help("requests at once")] = (1, 8, 32)
    adapters: Annotated[tuple[int, ...], option_help("distinct adapters of these requests, 0 for the base")] = (0, 8)
    rank: Annotated[int, option_help("rank of the adapters")] = 16
    prompt_tokens: Annotated[int, option_help("tokens of each prompt of streams")] = 65
    new_tokens: Annotated[int, option_help("tokens of each completion")] = 32
    lone_prompt: Annotated[int, option_help("tokens of a lone prompt")] = 512
    repeat: Annotated[int, option_help("rounds of each pair")] = 5


def measure(config: EngineConfig, options: Options) -> Iterator[Row]:
    """Yield a row for each number of streams and of adapters."""
    config = msgspec.structs.replace(config, quantization="none")
    digests = random_adapters(config, max(options.adapters, default=0), options.rank)
    workload = Workload(load_model_config(config.model_dir, config.decoder).vocab_size)
    general = msgspec.structs.replace(config, decoder="transformers")

    def step_ms(engine: BenchEngine, streams: int, adapters: int) -> float:
        picked = workload.pick(digests[:adapters], "turns")
        prompts = [workload.prompt(options.prompt_tokens) for _ in range(streams)]
        requests = [workload.request(prompt, options.new_tokens, adapter=next(picked)) for prompt in prompts]
        traces = run_closed(engine, [Source(iter(requests), streams)])
        return 1e3 * median(gap for trace in traces for gap in trace.gaps_s)

    def prompt_ms(engine: BenchEngine) -> float:
        return 1e3 * engine.answer(workload.request(workload.prompt(options.lone_prompt), 1)).ttft_s

    with BenchEngine(general, preload=digests) as ours, BenchEngine(config, preload=digests) as other:
        bound = Bound(LARGEST_RATIO)
        for adapters in options.adapters:
            for streams in options.streams:
                pairs = rounds(
                    lambda: Pair(step_ms(ours, streams, adapters), step_ms(other, streams, adapters)),  # noqa: B023
                    options.repeat,
                )
                of = f"{adapters} adapters" if adapters else "the base"
                yield ratio_row("decode", f"ms a step, {streams} streams of {of}", pairs, bound)
        pairs = rounds(lambda: Pair(prompt_ms(ours), prompt_ms(other)), options.repeat)
        yield ratio_row("prefill", f"ms a prompt of {options.lone_prompt} tokens", pairs, bound)
