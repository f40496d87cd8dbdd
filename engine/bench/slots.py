"""More adapters than slots: throughput, TTFT, the wait for a slot, and what loads do to running decodes.

Closed loops of the same requests: over few adapters that are all resident, over many with too few slots, and over these
with a slot for each. Adapters that fit into the slots are resident from the start.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Annotated

import msgspec

from engine.bench.adapters import random_adapters
from engine.bench.drive import BenchEngine, Source, Trace, run_closed
from engine.bench.measures import full_window, gaps_s, milliseconds, tokens_per_s, ttfts_s
from engine.bench.options import option_help
from engine.bench.report import Row, figure
from engine.bench.workload import Popularity, Workload
from engine.config import EngineConfig, load_model_config
from engine.protocol import EngineStats


class Options(msgspec.Struct, frozen=True):
    """The options of `python -m engine.bench slots`."""

    distributions: Annotated[tuple[Popularity, ...], option_help("ways in which requests choose adapters")] = (
        "zipf",
        "uniform",
    )
    adapters: Annotated[int, option_help("distinct adapters")] = 64
    slots: Annotated[int, option_help("slots on the device, fewer than adapters")] = 32
    resident: Annotated[int, option_help("adapters of the run that this is compared with")] = 24
    streams: Annotated[int, option_help("requests under way")] = 24
    tight_slots: Annotated[int, option_help("slots of the run whose waits are shown")] = 16
    tight_streams: Annotated[int, option_help("requests under way in that run; 0 leaves it out")] = 32
    requests_per_stream: Annotated[int, option_help("requests of a stream on average; at least 3")] = 6
    rank: Annotated[int, option_help("rank of the adapters")] = 16
    prompt_tokens: Annotated[int, option_help("tokens of each prompt")] = 64
    new_tokens: Annotated[
        int, option_help("tokens of each completion on average; each has half to one and a half of them")
    ] = 64
    host_bytes: Annotated[int, option_help("size of the host tier; 0 makes every load read files")] = 1 << 30


class Case(msgspec.Struct, frozen=True):
    """A run: requests to a number of adapters on an engine with a number of slots."""

    name: str
    popularity: Popularity
    num_adapters: int
    num_slots: int
    num_streams: int


def measure(config: EngineConfig, options: Options) -> Iterator[Row]:
    """Yield the rows of each distribution of requests over adapters."""
    config = msgspec.structs.replace(config, adapter_host_bytes=options.host_bytes)
    digests = random_adapters(config, options.adapters, options.rank)
    for popularity in options.distributions:
        few = Case("few, resident", popularity, options.resident, options.resident, options.streams)
        many = Case("more than slots", popularity, options.adapters, options.slots, options.streams)
        all_resident = Case("a slot for each", popularity, options.adapters, options.adapters, options.streams)
        rows = {}
        for case in (few, many, all_resident):
            rows[case.name] = _run(config, options, case, digests)
            yield rows[case.name]
        yield from _comparison_rows(popularity, rows[few.name], rows[many.name], rows[all_resident.name])
    tight = Case("far more than slots", "uniform", options.adapters, options.tight_slots, options.tight_streams)
    if tight.num_streams:
        yield _run(config, options, tight, digests)


def _comparison_rows(popularity: str, few: Row, many: Row, all_resident: Row) -> Iterator[Row]:
    over_slots = f"{popularity}: {many['adapters']} adapters over {many['slots']} slots,"
    yield figure(
        f"{over_slots} tokens/s to {few['adapters']} resident", many["tokens_per_s"] / few["tokens_per_s"], ">= 0.9"
    )
    yield figure(
        f"{over_slots} median TTFT to {few['adapters']} resident", many["ttft_p50_ms"] / few["ttft_p50_ms"], "<= 1.5"
    )
    yield figure(f"{over_slots} p99 gap to a slot for each", many["gap_p99_ms"] / all_resident["gap_p99_ms"], "<= 1.2")


def _run(config: EngineConfig, options: Options, case: Case, digests: list[str]) -> Row:
    """Run a case, and return its row.

    The lengths are the same in every case; for one popularity and number of adapters, so are the requests.
    """
    workload = Workload(load_model_config(config.model_dir).vocab_size)
    lengths = random.Random(0)  # noqa: S311
    adapters = workload.pick(digests[: case.num_adapters], case.popularity)
    requests = [
        workload.request(
            workload.prompt(options.prompt_tokens),
            lengths.randint(options.new_tokens // 2, options.new_tokens * 3 // 2),
            adapter=next(adapters),
        )
        for _ in range(case.num_streams * options.requests_per_stream)
    ]
    config = msgspec.structs.replace(config, max_adapters=case.num_slots)
    with BenchEngine(config, preload=digests[: min(case.num_slots, case.num_adapters)]) as engine:
        before = engine.stats
        traces = run_closed(engine, [Source(iter(requests), case.num_streams)])
    return _row(case, traces, before, engine.stats)


def _row(case: Case, traces: list[Trace], before: EngineStats, after: EngineStats) -> Row:
    window = full_window(traces, case.num_streams)
    loads = after.adapter_loads_total - before.adapter_loads_total
    load_s = after.adapter_load_seconds_total - before.adapter_load_seconds_total
    waits_s = [trace.final.usage.adapter_wait_ms / 1e3 for trace in traces if trace.final is not None]
    return {
        "case": case.name,
        "popularity": case.popularity,
        "adapters": case.num_adapters,
        "slots": case.num_slots,
        "streams": case.num_streams,
        "tokens_per_s": round(tokens_per_s(traces, window), 1),
        "ttft_p50_ms": milliseconds(ttfts_s(traces, window), 50),
        "ttft_p99_ms": milliseconds(ttfts_s(traces, window), 99),
        "gap_p50_ms": milliseconds(gaps_s(traces, window), 50),
        "gap_p99_ms": milliseconds(gaps_s(traces, window), 99),
        "wait_p50_ms": milliseconds(waits_s, 50),
        "wait_p99_ms": milliseconds(waits_s, 99),
        "wait_max_ms": milliseconds(waits_s, 100),
        "loads": loads,
        "load_ms": round(load_s / max(loads, 1) * 1e3, 1),
    }
