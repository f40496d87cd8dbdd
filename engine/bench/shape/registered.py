"""Many more adapters than slots, chosen by Zipf's law, beside as few as fit: tokens per second of the whole core.

Scheduler, pool and copies to the device are the engine's own; adapters are in the host tier from the start.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from engine.bench.drive import BenchEngine, Source, run_closed
from engine.bench.measures import full_window, milliseconds, tokens_per_s, ttfts_s
from engine.bench.report import Row, figure
from engine.bench.shape.rig import Rig
from engine.bench.shape.sizes import Sizes
from engine.bench.workload import Workload
from engine.compilations import Compilations
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.lora.loader import HostTier
from engine.mailbox import Mailbox, Wake
from engine.probes import Probes
from engine.scheduling.block_manager import BlockManager
from engine.scheduling.limits import Limits
from engine.scheduling.scheduler import Scheduler
from engine.statistics import Statistics

PROMPT_TOKENS = 64
NEW_TOKENS = 64


def measure_registered(rig: Rig, sizes: Sizes, *, dry: bool) -> Iterator[Row]:
    """Two closed loops of the same requests but for their adapters. The rig's pool ends with them."""
    workload = Workload(rig.model.vocab_size)
    new_tokens = 2 if dry else NEW_TOKENS
    prompt_tokens = sizes.chunk_tokens if dry else PROMPT_TOKENS
    rates = []
    with BenchEngine(rig.config, build=lambda config, mailbox: _core(rig, config, mailbox)) as engine:
        for num_adapters in (sizes.few, sizes.registered):
            adapters = workload.pick([str(i) for i in range(num_adapters)], "zipf")
            requests = (
                workload.request(workload.prompt(prompt_tokens), new_tokens, adapter=next(adapters))
                for _ in range(sizes.requests)
            )
            before = engine.stats.adapter_loads_total
            traces = run_closed(engine, [Source(requests, sizes.streams)])
            if dry:
                yield {"case": f"{num_adapters} registered", "requests": len(traces)}
                continue
            window = full_window(traces, sizes.streams)
            rates.append(tokens_per_s(traces, window))
            yield {
                "case": f"{num_adapters} registered",
                "slots": sizes.slots,
                "tokens_per_s": round(rates[-1], 1),
                "ttft_p50_ms": milliseconds(ttfts_s(traces, window), 50),
                "ttft_p99_ms": milliseconds(ttfts_s(traces, window), 99),
                "loads": engine.stats.adapter_loads_total - before,
            }
    if not dry:
        yield figure(f"{sizes.registered} adapters over {sizes.few}, tokens/s", rates[1] / rates[0], ">= 0.95")


def _core(rig: Rig, config: EngineConfig, mailbox: Mailbox) -> EngineCore:
    """The engine's loop around the rig's pool and runner, without grammars."""
    rig.wake = lambda: mailbox.command(Wake())
    blocks = BlockManager(rig.device.num_blocks, config.block_size)
    limits = Limits(
        max_num_seqs=config.max_num_seqs,
        max_batched_tokens=config.max_batched_tokens,
        max_waiting=config.max_waiting,
        max_model_len=rig.device.max_model_len,
        vocab_size=rig.model.vocab_size,
        eos_token_ids=frozenset(),
        token_bytes=1,
    )
    scheduler = Scheduler(blocks, rig.pool, limits, time.monotonic)
    compilations = Compilations(scheduler, None)
    statistics = Statistics(scheduler, blocks, rig.pool, HostTier(0), compilations)
    probes = Probes(rig.pool, rig.model.vocab_size, rig.device.max_model_len)
    return EngineCore(mailbox, scheduler, rig.pool, rig.runner, compilations, statistics, probes)
