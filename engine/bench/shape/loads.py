"""The gaps between the tokens of streams while adapters are loaded beside them.

Streams with an adapter each decode all the time, while short requests come at a fixed pace, each with the next adapter.
In one run these are resident, in the other the same weights have names that are not there, so each must be loaded from
the host tier. Lengths, pace and weights are the same, so a step holds as many distinct adapters in both.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import fmean

import msgspec

from engine.bench.drive import BenchEngine, Trace
from engine.bench.measures import Window, adapters_by_step, gaps_s, milliseconds, percentile
from engine.bench.report import Row, figure
from engine.bench.shape.rig import Rig
from engine.bench.shape.sizes import Sizes
from engine.bench.shape.weights import NUM_DISTINCT
from engine.bench.workload import Workload
from engine.lora.pool import AdapterPool
from engine.protocol import GenerateRequest
from kernels.bench.floors import Rates

PROMPT_TOKENS = 64
NEW_TOKENS = 8


class Case(msgspec.Struct):
    """The figures of all runs of one kind."""

    name: str
    adapters: list[str]
    """The adapters of the short requests, one after the other."""
    gaps_s: list[float] = []
    """Seconds between successive tokens of the streams."""
    ttfts_s: list[float] = []
    """Seconds to the first token of each short request."""
    adapters_by_step: list[set[str]] = []
    """The adapters that each step computed with."""
    num_loads: int = 0
    """The number of adapters that were loaded."""


def measure_loads(rig: Rig, engine: BenchEngine, sizes: Sizes, rates: Rates | None) -> Iterator[Row]:
    """Yield rows of short requests whose adapters are resident or loaded.

    rates: None runs everything and claims nothing.
    """
    num_streams = min(sizes.background, sizes.slots // 2, sizes.streams // 2)
    resident = [str(number) for number in range(sizes.slots)]
    used = resident[num_streams:]
    there = [used[number % len(used)] for number in range(sizes.loads)]
    # A name that is equal modulo NUM_DISTINCT has the same weights.
    elsewhere = [str(int(name) + NUM_DISTINCT * sizes.slots * (1 + number)) for number, name in enumerate(there)]
    cases = [Case("short requests, resident", there), Case("short requests, loaded", elsewhere)]
    workload = Workload(rig.model.vocab_size, seed=1)
    prompt_tokens, new_tokens = (PROMPT_TOKENS, NEW_TOKENS) if rates else (sizes.chunk_tokens, 2)
    without_end = rig.device.max_model_len - prompt_tokens

    def request(num_tokens: int, adapter: str) -> GenerateRequest:
        return workload.request(workload.prompt(prompt_tokens), num_tokens, adapter=adapter)

    for _ in range(sizes.rounds):  # in turns: a GPU's clock moves
        for case in cases:
            _fill(rig.pool, resident)
            before = rig.pool.num_loads
            streams = [request(without_end, name) for name in resident[:num_streams]]
            _run(engine, streams, [request(new_tokens, name) for name in case.adapters], sizes.pace_ms / 1e3, case)
            case.num_loads += rig.pool.num_loads - before
    for case in cases:
        if rates is None:
            yield {"case": case.name, "requests": len(case.ttfts_s), "loads": case.num_loads}
            continue
        yield {
            "case": case.name,
            "streams": num_streams,
            "adapters_a_step": round(fmean(map(len, case.adapters_by_step)), 1),
            "gap_p50_ms": milliseconds(case.gaps_s, 50),
            "gap_p99_ms": milliseconds(case.gaps_s, 99),
            "gap_max_ms": milliseconds(case.gaps_s, 100),
            "short_ttft_p50_ms": milliseconds(case.ttfts_s, 50),
            "loads": case.num_loads,
        }
    if rates is not None:
        kept, loaded = (percentile(case.gaps_s, 99) for case in cases)
        yield figure("p99 token gap during loads over resident", loaded / kept, "<= 1.2")


def _fill(pool: AdapterPool, names: list[str]) -> None:
    """Fill all slots with these adapters.

    Each is held until the last one is loaded, so that none takes another's slot.
    """
    held = []
    for name in names:
        pool.preload(name)
        held.append(pool.acquire(name))
    for index in held:
        assert index is not None
        pool.release(index)


def _run(
    engine: BenchEngine, streams: list[GenerateRequest], shorts: list[GenerateRequest], pace_s: float, case: Case
) -> None:
    """Run the streams, and beside them the short requests, and add the measured times to `case`.

    The short requests are sent from the moment when all streams decode; the run ends with the last of them.

    pace_s: the seconds between two short requests.
    """
    running = [engine.send(request) for request in streams]
    while not all(stream.arrived_s for stream in running):
        engine.turn()
    start_s = time.monotonic()
    sent: list[Trace] = []
    for number, request in enumerate(shorts):
        while time.monotonic() < start_s + number * pace_s:
            engine.turn()
        sent.append(engine.send(request))
    while not all(short.final is not None for short in sent):
        engine.turn()
    window = Window(start_s, time.monotonic())
    assert all(stream.final is None for stream in running), "a stream ended before the last short request"
    engine.abort_all()
    case.gaps_s += gaps_s(running, window)
    case.ttfts_s += [short.ttft_s for short in sent]
    case.adapters_by_step += adapters_by_step([*running, *sent], window)
