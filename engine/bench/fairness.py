"""Fairness under saturation: a quiet tenant beside one that sends a hundred times as much, and shares by weight.

Tenants are closed loops whose requests under way alone exceed what the engine runs at once, so that it is saturated
throughout. The start, while the queue fills, is not counted.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Annotated

import msgspec

from engine.bench.drive import BenchEngine, Source, Trace, run_closed
from engine.bench.measures import Window, milliseconds, percentile
from engine.bench.options import option_help
from engine.bench.report import Row, figure
from engine.bench.workload import Workload
from engine.config import EngineConfig, load_model_config
from engine.protocol import GenerateRequest
from engine.scheduling.fairness import DECODE_COST


class Options(msgspec.Struct, frozen=True):
    """The options of `python -m engine.bench fairness`."""

    max_num_seqs: Annotated[int, option_help("choices that the engine runs at once")] = 8
    streams: Annotated[int, option_help("streams of a tenant that sends its share")] = 8
    factor: Annotated[int, option_help("times as much that the noisy tenant sends")] = 100
    weight: Annotated[float, option_help("weight of the heavy tenant; the light one has 1")] = 3.0
    seconds: Annotated[float, option_help("seconds of each run")] = 60.0
    margin: Annotated[float, option_help("seconds at both ends of a run in which nothing is counted")] = 5.0
    prompt_tokens: Annotated[int, option_help("tokens of each prompt")] = 64
    new_tokens: Annotated[
        int, option_help("tokens of each completion on average; each has half to one and a half of them")
    ] = 24


class Tenant(msgspec.Struct, frozen=True):
    """A tenant of a run, and the number of streams that it keeps busy."""

    name: str
    num_streams: int
    weight: float = 1.0


def measure(config: EngineConfig, options: Options) -> Iterator[Row]:
    """Yield the rows of the noisy neighbour and of the weights."""
    config = msgspec.structs.replace(
        config,
        max_num_seqs=options.max_num_seqs,
        # A tenant may hold about half of the queue: here the noisy one must find room for all that it sends.
        max_waiting=max(config.max_waiting, 2 * options.streams * (options.factor + 2)),
    )
    quiet = Tenant("quiet", options.streams)
    p99_s = {}
    for case, num_streams in (("equal", options.streams), ("noisy", options.streams * options.factor)):
        traces, window = _run_tenants(config, options, [quiet, Tenant("other", num_streams)])
        p99_s[case] = percentile(_ttfts_s(traces, quiet, window), 99)
        yield from (_row(case, traces, tenant, window) for tenant in (quiet, Tenant("other", num_streams)))
    yield figure(
        f"quiet's p99 TTFT beside {options.factor} times as much, to that beside its equal",
        p99_s["noisy"] / p99_s["equal"],
        "<= 1.5",
    )
    heavy, light = Tenant("heavy", options.streams * 2, options.weight), Tenant("light", options.streams * 2)
    traces, window = _run_tenants(config, options, [heavy, light])
    yield from (_row("weights", traces, tenant, window) for tenant in (heavy, light))
    shares = _service(traces, heavy, window) / _service(traces, light, window)
    low, high = options.weight * 0.9, options.weight * 1.1
    yield figure(f"service at weights {options.weight:g} : 1", shares, f"{low:.2g} .. {high:.2g}")


def _run_tenants(config: EngineConfig, options: Options, tenants: list[Tenant]) -> tuple[list[Trace], Window]:
    workload = Workload(load_model_config(config.model_dir).vocab_size)
    sources = [Source(_requests(workload, options, tenant), tenant.num_streams) for tenant in tenants]
    with BenchEngine(config) as engine:
        traces = run_closed(engine, sources, options.seconds)
    start_s = traces[0].sent_s
    return traces, Window(start_s + options.margin, start_s + options.seconds - options.margin)


def _requests(workload: Workload, options: Options, tenant: Tenant) -> Iterator[GenerateRequest]:
    """Yield requests of a tenant without end. Lengths vary, so that requests do not come and go in step."""
    lengths = random.Random(tenant.name)  # noqa: S311
    while True:
        yield workload.request(
            workload.prompt(options.prompt_tokens),
            lengths.randint(options.new_tokens // 2, options.new_tokens * 3 // 2),
            tenant=tenant.name,
            weight=tenant.weight,
        )


def _row(case: str, traces: list[Trace], tenant: Tenant, window: Window) -> Row:
    ttfts_s = _ttfts_s(traces, tenant, window)
    return {
        "case": f"{case}: {tenant.name}",
        "streams": tenant.num_streams,
        "weight": tenant.weight,
        "requests": len(ttfts_s),
        "ttft_p50_ms": milliseconds(ttfts_s, 50),
        "ttft_p99_ms": milliseconds(ttfts_s, 99),
        "service_per_s": round(_service(traces, tenant, window) / window.seconds, 1),
    }


def _ttfts_s(traces: list[Trace], tenant: Tenant, window: Window) -> list[float]:
    """Return the TTFTs of requests sent within the window.

    A request that never got a token counts with all the time it waited.
    """
    return [
        trace.ttft_s if trace.arrived_s else trace.ended_s - trace.sent_s
        for trace in traces
        if trace.request.tenant == tenant.name and trace.sent_s in window
    ]


def _service(traces: list[Trace], tenant: Tenant, window: Window) -> float:
    """Return the service of a tenant in the window, in the units of `engine.scheduling.fairness`, before weights.

    A prompt counts where its first token came.
    """
    service = 0.0
    for trace in traces:
        if trace.request.tenant == tenant.name and trace.arrived_s:
            service += len(trace.request.prompt_token_ids) * (trace.arrived_s[0] in window)
            service += DECODE_COST * sum(time_s in window for time_s in trace.arrived_s)
    return service
