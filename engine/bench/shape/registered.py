"""Many more adapters than slots, chosen by Zipf's law, beside as few as fit: tokens per second of the whole core.

Scheduler, pool and copies to the device are the engine's own; adapters are in the host tier from the start.

A step of many streams holds more distinct adapters out of 1,000 than out of five, and each has to be read: 84 MB for an
8B model at rank 16. So beside the ratio of the two runs stands the one that these bytes allow: the steps of the run
with few, as they were measured, made longer by nothing but reading the further adapters at the memory's rate. Loads,
waits for a slot and whatever else many adapters cost count against the engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from engine.bench.drive import BenchEngine, Source, run_closed
from engine.bench.measures import adapters_by_step, full_window, milliseconds, tokens_per_s, ttfts_s
from engine.bench.report import Row, figure
from engine.bench.shape.floors import share_left_by_adapters
from engine.bench.shape.rig import Rig
from engine.bench.shape.sizes import Sizes
from engine.bench.workload import Workload
from kernels.bench.floors import Rates

PROMPT_TOKENS = 64
NEW_TOKENS = 64


def measure_registered(rig: Rig, engine: BenchEngine, sizes: Sizes, rates: Rates | None) -> Iterator[Row]:
    """Yield rows of two closed loops of the same requests but for their adapters.

    rates: the rates of this device, measured in this run; None runs everything and claims nothing.
    """
    workload = Workload(rig.model.vocab_size)
    prompt_tokens, new_tokens = (PROMPT_TOKENS, NEW_TOKENS) if rates else (sizes.chunk_tokens, 2)
    seen = []
    for num_adapters in (sizes.few_registered, sizes.registered):
        adapters = workload.pick([str(i) for i in range(num_adapters)], "zipf")
        requests = (
            workload.request(workload.prompt(prompt_tokens), new_tokens, adapter=next(adapters))
            for _ in range(sizes.requests)
        )
        before = rig.pool.num_loads
        traces = run_closed(engine, [Source(requests, sizes.streams)])
        if rates is None:
            yield {"case": f"{num_adapters} registered", "requests": len(traces)}
            continue
        window = full_window(traces, sizes.streams)
        steps = [len(adapters) for adapters in adapters_by_step(traces, window)]
        seen.append((tokens_per_s(traces, window), window.seconds / len(steps), fmean(steps)))
        yield {
            "case": f"{num_adapters} registered",
            "slots": sizes.slots,
            "tokens_per_s": round(seen[-1][0], 1),
            "step_ms": round(seen[-1][1] * 1e3, 2),
            "adapters_a_step": round(seen[-1][2], 1),
            "ttft_p50_ms": milliseconds(ttfts_s(traces, window), 50),
            "ttft_p99_ms": milliseconds(ttfts_s(traces, window), 99),
            "loads": rig.pool.num_loads - before,
        }
    if rates is None:
        return
    (few_rate, few_step_s, few_distinct), (many_rate, _, many_distinct) = seen
    allowed = share_left_by_adapters(
        rig.model, few_step_s, many_distinct - few_distinct, sizes.rank, rig.dtype.itemsize, rates
    )
    compared = f"{sizes.registered} adapters over {sizes.few_registered}, tokens/s"
    yield figure(compared, many_rate / few_rate, ">= 0.95")
    yield figure(f"{compared}, that the bytes of a step allow", allowed)
    yield figure(f"{compared}, of what its bytes allow", many_rate / few_rate / allowed, ">= 0.95")
