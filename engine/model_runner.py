"""Runs one plan on the device: builds the batch, lays out its adapters, computes, then makes of each chunk's hidden
states what its request wants: tokens, the prompt's log-probabilities, a part of an embedding."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many
from itertools import islice
from operator import itemgetter

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.batch import BatchBuilder
from engine.config import EngineConfig
from engine.lora.layer import LoadedAdapter, Segment, StepLora
from engine.lora.table import AdapterTables
from engine.models.decoder import Decoder
from engine.protocol import TokenLogprobs
from engine.sampling.logprobs import token_logprobs
from engine.sampling.outputs import ChunkRows, rows_of
from engine.sampling.sampler import Sampler
from engine.sequence import ChunkResult, Plan, Sampled, Sequence

LOGPROB_ROWS = 64


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
        if plan.prefills:
            return self._compute(plan)
        order = self._tables.order([self._adapter_of(chunk.sequence) for chunk in plan.decodes])
        results = self._compute(Plan([plan.decodes[place] for place in order], []))
        return [result for _, result in sorted(zip(order, results, strict=True), key=itemgetter(0))]

    def _compute(self, plan: Plan) -> list[ChunkResult]:
        wanted = rows_of(plan.chunks)
        sampling = [row for w in wanted for row in w.sampled]
        scoring = [row for w in wanted for row in w.scored]
        pooling = [row for w in wanted for row in w.pooled]
        batch = self._batches.build(plan, sampling + scoring + pooling, self._step_lora(plan))
        hidden = self._decoder.forward(batch, self._caches)
        to_sample, to_score, to_pool = torch.split(hidden, [len(sampling), len(scoring), len(pooling)])
        sampled = iter(self._sample(to_sample, wanted))
        scored = iter(self._score_prompts(to_score, wanted))
        return [
            ChunkResult(list(islice(sampled, len(w.sampled))), list(islice(scored, len(w.scored))), pooled)
            for w, pooled in zip(wanted, self._pool(to_pool, wanted), strict=True)
        ]

    def _sample(self, hidden: Tensor, wanted: Many[ChunkRows]) -> list[Sampled]:
        """The tokens of all `sampled` rows."""
        rows = [row for w in wanted for row in w.sampling_rows]
        return self._sampler.choose(self._decoder.logits(hidden), rows) if rows else []

    def _score_prompts(self, hidden: Tensor, wanted: Many[ChunkRows]) -> list[TokenLogprobs]:
        """The log-probabilities of all `scored` rows, a slice at a time: the logits of a whole prompt would not fit."""
        token_ids = [token for w in wanted for token in w.scored_token_ids]
        counts = [w.num_prompt_logprobs for w in wanted for _ in w.scored]
        scored: list[TokenLogprobs] = []
        for first in range(0, len(token_ids), LOGPROB_ROWS):
            part = slice(first, first + LOGPROB_ROWS)
            scored += token_logprobs(self._decoder.logits(hidden[part]), token_ids[part], counts[part])
        return scored

    @staticmethod
    def _pool(hidden: Tensor, wanted: Many[ChunkRows]) -> list[NDArray[np.float32] | None]:
        """Per chunk the sum of its `pooled` rows."""
        parts = torch.split(hidden, [len(w.pooled) for w in wanted])
        return [part.float().sum(0).cpu().numpy() if len(part) else None for part in parts]

    def _step_lora(self, plan: Plan) -> StepLora | None:
        segments: list[Segment] = []
        first = 0
        for chunk in plan.chunks:
            adapter = self._adapter_of(chunk.sequence)
            if adapter is not None:
                segments.append(Segment(adapter, first, first + chunk.num_tokens))
            first += chunk.num_tokens
        return self._tables.step(segments)

    def _adapter_of(self, sequence: Sequence) -> LoadedAdapter | None:
        return None if sequence.adapter_slot is None else self._adapter_in(sequence.adapter_slot)
