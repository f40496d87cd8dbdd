"""One table of everything that decides what a machine can serve, beside transformers in the same run.

Offline: streams and adapters, popularity, long prompts and shared prefixes; then more adapters than slots, and a quiet
tenant beside a noisy one. Each has a scenario of its own with more to choose.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Annotated

import msgspec

from engine.bench import fairness, slots
from engine.bench.options import option_help
from engine.bench.report import Row
from engine.bench.throughput import Load, compare
from engine.bench.yardstick import TransformersProcess
from engine.config import EngineConfig


class Options(msgspec.Struct, frozen=True):
    """The options of `python -m engine.bench overview`."""

    streams: Annotated[tuple[int, ...], option_help("requests at once")] = (1, 8, 32)
    adapters: Annotated[tuple[int, ...], option_help("distinct adapters of these requests, 0 for the base")] = (
        0,
        1,
        8,
        64,
    )
    repeat: Annotated[int, option_help("runs of each combination, for both sides")] = 2
    new_tokens: Annotated[int, option_help("tokens of each completion, but for the quiet and the noisy tenant's")] = 64
    long_prompt: Annotated[int, option_help("tokens of a long prompt, and of a shared prefix")] = 512
    seconds: Annotated[float, option_help("seconds of each run of the quiet and the noisy tenant")] = 30.0
    requests_per_stream: Annotated[
        int, option_help("requests of a stream where adapters outnumber slots; at least 3")
    ] = 4


def measure(config: EngineConfig, options: Options, yardstick: TransformersProcess | None = None) -> Iterator[Row]:
    """Yield the rows of the overview. yardstick: as for `compare`."""
    for load, row in compare(config, _loads(options), rank=16, repeat=options.repeat, yardstick=yardstick):
        yield {
            "case": _case(load),
            "streams": load.streams,
            "adapters": load.adapters,
            "popularity": load.distribution,
            "prompt": load.shared_prefix + load.prompt_tokens,
        } | row
    most_streams, most_adapters = max(options.streams), max(options.adapters)
    over_slots = slots.Options(
        distributions=("zipf",),
        adapters=most_adapters,
        slots=(most_adapters + 1) // 2,
        resident=min(24, most_adapters),
        streams=min(24, most_streams),
        tight_streams=0,
        requests_per_stream=options.requests_per_stream,
        new_tokens=options.new_tokens,
    )
    yield from slots.measure(config, over_slots)
    yield from fairness.measure(config, fairness.Options(seconds=options.seconds, margin=options.seconds / 10))


def _case(load: Load) -> str:
    if load.shared_prefix:
        return "shared prefix"
    return "plain" if load.prompt_tokens == Load(1, 0).prompt_tokens else "long prompts"


def _loads(options: Options) -> list[Load]:
    most_streams, most_adapters = max(options.streams), max(options.adapters)
    load = partial(Load, new_tokens=options.new_tokens)
    loads = [load(streams, adapters) for streams in options.streams for adapters in options.adapters]
    loads += [load(most_streams, most_adapters, popularity) for popularity in ("identical", "uniform", "zipf")]
    few = min(8, most_adapters)
    loads += [load(min(8, most_streams), adapters, prompt_tokens=options.long_prompt) for adapters in (0, few)]
    return [*loads, *(load(most_streams, adapters, shared_prefix=options.long_prompt) for adapters in (0, few))]
