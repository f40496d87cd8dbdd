"""Runs one plan on the device: builds the batch, lays out its adapters, computes, samples."""

from __future__ import annotations

from collections.abc import Callable

import torch

from engine.batch import BatchBuilder
from engine.config import EngineConfig
from engine.layers.lora import LoadedAdapter, Segment, StepLora
from engine.layers.lora_table import AdapterTables
from engine.models.decoder import Decoder
from engine.sampler import Sampler
from engine.sequence import ChunkResult, Plan, Sequence


class ModelRunner:
    """Owns the cache's memory. adapter_in: the adapter that a slot of the pool holds; tables: of those that decode."""

    def __init__(
        self,
        decoder: Decoder,
        config: EngineConfig,
        num_blocks: int,
        adapter_in: Callable[[int], LoadedAdapter],
        tables: AdapterTables,
    ) -> None:
        model = decoder.config
        self._decoder = decoder
        self._adapter_in = adapter_in
        self._batches = BatchBuilder(config.block_size, model.sliding_window, decoder.device)
        self._sampler = Sampler(model.eos_token_ids)
        self._tables = tables
        shape = (2, model.num_kv_heads, num_blocks * config.block_size, model.head_dim)
        # Zeros, not garbage: padded context is read at weight 0, and 0 * NaN is a NaN (see kernels.kv_cache).
        self._caches = [torch.zeros(shape, dtype=decoder.dtype, device=decoder.device) for _ in range(model.num_layers)]

    @torch.inference_mode()
    def run(self, plan: Plan) -> list[ChunkResult]:
        """One result per chunk of plan.chunks."""
        batch = self._batches.build(plan, self._step_lora(plan))
        sequences = [chunk.sequence for chunk in plan.chunks if chunk.samples]
        logits = self._decoder.forward(batch, self._caches)
        chosen = iter(self._sampler.choose(logits, sequences) if sequences else [])
        return [ChunkResult([next(chosen)] if chunk.samples else []) for chunk in plan.chunks]

    def _step_lora(self, plan: Plan) -> StepLora | None:
        rows = [
            adapter
            for chunk in plan.decodes
            if (adapter := self._adapter_of(chunk.sequence)) is not None
            for _ in range(chunk.num_tokens)
        ]
        segments: list[Segment] = []
        first = sum(chunk.num_tokens for chunk in plan.decodes)
        for chunk in plan.prefills:
            adapter = self._adapter_of(chunk.sequence)
            if adapter is not None:
                segments.append(Segment(adapter, first, first + chunk.num_tokens))
            first += chunk.num_tokens
        if not rows and not segments:
            return None
        return StepLora(self._tables.batches(rows), len(rows), segments)

    def _adapter_of(self, sequence: Sequence) -> LoadedAdapter | None:
        return None if sequence.adapter_slot is None else self._adapter_in(sequence.adapter_slot)
