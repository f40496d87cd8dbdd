"""The engine's snapshot of itself: the counters of its parts, put together as `EngineStats`.

Reads the parts and changes none of them. The server adds the one number that it alone knows: the usage that waits for
gateways.
"""

from __future__ import annotations

from bisect import bisect_left

from engine.compilations import Compilations
from engine.lora.loader import HostTier
from engine.lora.pool import AdapterPool
from engine.probes import NOBODY
from engine.protocol import STEP_BUCKETS_S, EngineStats, TenantStats
from engine.scheduling.block_manager import BlockManager
from engine.scheduling.scheduler import Scheduler

NUM_TENANT_STATS = 32
NUM_WAITING_STATS = 64


class Statistics:
    """The counters of one engine. Belongs to the stepping thread, as the parts do."""

    def __init__(
        self,
        scheduler: Scheduler,
        blocks: BlockManager,
        adapters: AdapterPool,
        host: HostTier,
        compilations: Compilations,
    ) -> None:
        self._scheduler = scheduler
        self._blocks = blocks
        self._adapters = adapters
        self._host = host
        self._compilations = compilations
        self._step_counts = [0] * (len(STEP_BUCKETS_S) + 1)
        self._step_seconds = 0.0

    def count_step(self, seconds: float) -> None:
        """Count a step.

        seconds: the time from the plan, or the outputs of the step before, to the outputs: the time that a sequence
        waits for its next token.
        """
        self._step_counts[bisect_left(STEP_BUCKETS_S, seconds)] += 1
        self._step_seconds += seconds

    def snapshot(self) -> EngineStats:
        """Return the counters of all parts as they are now."""
        scheduler, adapters, compilations = self._scheduler, self._adapters, self._compilations
        totals, slots = scheduler.totals, adapters.slots
        num_tables = self._blocks.num_tables  # a block of protocol.EngineStats has all layers
        num_blocks = self._blocks.num_blocks // num_tables
        return EngineStats(
            num_running=scheduler.num_running,
            num_waiting=scheduler.num_waiting,
            num_batch_running=scheduler.num_batch_running,
            num_batch_waiting=scheduler.num_batch_waiting,
            num_batch_wanted=scheduler.num_batch_wanted,
            kv_blocks_used=num_blocks - self._blocks.num_free // num_tables,
            kv_blocks_total=num_blocks,
            preemptions_total=totals.preemptions,
            prompt_tokens_total=totals.prompt_tokens,
            generation_tokens_total=totals.generated_tokens,
            batch_prompt_tokens_total=totals.batch_prompt_tokens,
            batch_generation_tokens_total=totals.batch_generated_tokens,
            batch_preemptions_total=totals.batch_preemptions,
            batch_recomputed_tokens_total=totals.batch_recomputed_tokens,
            step_seconds_total=self._step_seconds,
            step_counts=list(self._step_counts),
            adapter_loads_total=adapters.num_loads,
            adapter_load_bytes_total=adapters.num_load_bytes,
            adapter_load_seconds_total=adapters.load_seconds,
            adapter_evictions_total=slots.num_evictions,
            adapter_slots_used=slots.num_used,
            adapter_slots_total=len(slots),
            adapter_bytes_used=slots.num_bytes,
            adapter_bytes_total=slots.max_bytes,
            adapters_waiting=adapters.num_waiting,
            adapter_host_bytes=self._host.num_bytes,
            adapter_host_hits_total=self._host.num_hits,
            grammars_compiling=len(compilations),
            grammars_compiled_total=compilations.num_compiled,
            grammars_refused_total=compilations.num_refused,
            grammar_wait_seconds_total=compilations.wait_seconds,
            prefix_query_tokens_total=totals.prefix_query_tokens,
            prefix_hit_tokens_total=totals.prefix_hit_tokens,
            draft_tokens_total=totals.draft_tokens,
            accepted_draft_tokens_total=totals.accepted_draft_tokens,
            tenants=self._tenants(),
            resident_adapters=adapters.resident,
            waiting_adapters=adapters.waiting[:NUM_WAITING_STATS],
        )

    def _tenants(self) -> dict[str, TenantStats]:
        tenants = self._scheduler.tenant_stats(NUM_TENANT_STATS)
        tenants.pop(NOBODY, None)
        return tenants
