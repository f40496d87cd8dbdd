"""A model that transformers computes, on a CPU: attention over the paged cache as its layers ask for it, and the path.

Beside `engine.cpu.attention`, queries and keys come rotated, and layers may differ in heads, sizes, scaling, caps and
sinks.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Many

import torch
from torch import Tensor
from torch.nn.functional import pad

from engine.config import EngineConfig, ModelConfig
from engine.config.cache_layout import CacheLayout, layout_of, one_table
from engine.cpu.attention import AttentionRows, View
from engine.cpu.batch import BatchBuilder
from engine.cpu.path import AdapterPath
from engine.cpu.setup import ADAPTER_BYTES, cache_bytes
from engine.cpu.tables import AdapterTables
from engine.cpu.threads import AdaptedThreads, linux_usage
from engine.device import AdapterIn, Device, DevicePath, blocks_within, context_length
from engine.hardware import free_host_bytes, num_threads
from engine.lora.layer import LoadedAdapter
from engine.models.general.build import load_general
from engine.models.general.decoder import GeneralDecoder
from engine.models.general.interface import LayerAttention
from engine.sampling.choice import choose_on_host
from engine.sequence import Plan
from engine.transfers import HostTransfers
from kernels.attention import decode_attention, prefill_attention
from kernels.capped_attention import capped_decode_attention, capped_prefill_attention
from kernels.kv_cache import write_kv
from kernels.workspace import Workspace


class GeneralCache:
    """Keys and values of all layers in num_slots slots; values that are narrower than keys have zeros behind them."""

    def __init__(self, layers: Many[LayerAttention], num_slots: int, dtype: torch.dtype, layout: CacheLayout) -> None:
        self.kinds = layers
        self.views = [View(layout.places[index].table, layer.window) for index, layer in enumerate(layers)]
        self.gathered = Workspace(dtype, torch.device("cpu"))
        # Zeros, not garbage: padded context is read at weight 0, and 0 * NaN is a NaN (see kernels.kv_cache).
        shared: dict[int, Tensor] = {}
        for index, layer in enumerate(layers):
            depth = layout.places[index].depth
            if depth not in shared:
                shared[depth] = torch.zeros(2, layer.num_kv_heads, num_slots, layer.head_dim, dtype=dtype)
        self.layers = [shared[layout.places[index].depth] for index in range(len(layers))]

    @staticmethod
    def token_bytes(layers: Many[LayerAttention], dtype: torch.dtype) -> int:
        """Return the bytes of one token's keys and values in all layers."""
        return sum(2 * layer.num_kv_heads * layer.head_dim for layer in layers) * dtype.itemsize


class GeneralAttention:
    """The attention of one step over the cache (`engine.models.general.interface.RotatedAttention`).

    rows: the same rows for each view of the model's layers, which differ in what the rows see.
    """

    def __init__(self, cache: GeneralCache, rows: Mapping[View, AttentionRows]) -> None:
        self._cache = cache
        self._rows = rows

    def attend_rotated(self, index: int, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None) -> Tensor:
        """Attend in layer `index` as its kind asks for: once for all decodes, and once for each chunk of a prompt.

        sinks: as for `RotatedAttention.attend_rotated`.
        """
        kind, cache = self._cache.kinds[index], self._cache.layers[index]
        rows = self._rows[self._cache.views[index]]
        narrower = kind.head_dim - kind.value_dim
        write_kv(cache, torch.cat((k, pad(v, (0, narrower)) if narrower else v), 1), rows.slots)
        factor = kind.scaling * math.sqrt(kind.head_dim)  # attention divides by the root itself
        q = q.contiguous() if math.isclose(factor, 1.0, rel_tol=1e-9) else (q * factor).contiguous()
        is_plain = kind.cap is None and sinks is None
        parts = []
        if rows.num_decodes:
            first, blocks, hidden = q[: rows.num_decodes], rows.decode_blocks, rows.decode_hidden
            parts.append(
                decode_attention(first, cache, blocks, hidden, self._cache.gathered)
                if is_plain
                else capped_decode_attention(first, cache, blocks, hidden, kind.cap, sinks)
            )
        for part in rows.prefills:
            queries = q[part.first : part.last]
            parts.append(
                prefill_attention(queries, cache, part.slots, part.visible)
                if is_plain
                else capped_prefill_attention(queries, cache, part.slots, part.visible, kind.cap, sinks)
            )
        out = parts[0] if len(parts) == 1 else torch.cat(parts)
        return out.view(len(q), kind.num_heads, kind.head_dim)[..., : kind.value_dim]


class GeneralPath(AdapterPath):
    """Computes plans by a model of transformers'."""

    def __init__(
        self,
        decoder: GeneralDecoder,
        cache: GeneralCache,
        block_size: int,
        adapter_in: Callable[[int], LoadedAdapter],
        tables: AdapterTables,
        threads: AdaptedThreads | None = None,
    ) -> None:
        super().__init__(adapter_in, tables, threads)
        self._decoder = decoder
        self._cache = cache
        self._batches = BatchBuilder(block_size, cache.views)

    def forward(self, plan: Plan, output_rows: Many[int]) -> Tensor:
        """Return the hidden states [W, hidden] of these rows of a plan."""
        self.adapt_threads()
        token_ids, rows = self._batches.build(plan)
        positions = next(iter(rows.values())).positions
        wanted = torch.tensor(output_rows, dtype=torch.int64)
        attention = GeneralAttention(self._cache, rows)
        return self._decoder.forward(token_ids, positions, attention, wanted, self.step_lora(plan))

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits of rows of `forward`: [W, hidden] -> [W, V] fp32."""
        return self._decoder.logits(hidden)


def general_layout(config: EngineConfig, model: ModelConfig, layers: Many[LayerAttention]) -> CacheLayout:
    """Return the layout of the cache of a model's layers: one table where layers differ in heads or sizes."""
    windows = {index: layer.window for index, layer in enumerate(layers)}
    if len({(layer.num_kv_heads, layer.head_dim) for layer in layers}) > 1:
        return one_table(windows)
    return layout_of(windows, min(config.max_model_len or model.max_position, model.max_position))


def build_general_cpu(config: EngineConfig, model: ModelConfig, dtype: torch.dtype) -> Device:
    """Build the CPU's device around a model that transformers computes.

    Raises SetupError: when the cache does not fit in memory.
    Raises UnsupportedModel: when the engine cannot compute one of the model's layers.
    """
    most = num_threads(config.num_threads)
    torch.set_num_threads(most)
    model, decoder = load_general(config.model_dir, model, dtype, torch.device("cpu"))
    token_bytes = GeneralCache.token_bytes(decoder.layers, dtype)
    free_bytes = free_host_bytes()
    budget = config.kv_cache_bytes
    if budget is None:
        budget = cache_bytes(config, model, token_bytes, free_bytes)
    layout = general_layout(config, model, decoder.layers)
    block_bytes = layout.block_bytes(token_bytes, config.block_size)
    num_blocks = blocks_within(budget, block_bytes, free_bytes, layout.num_tables)
    max_model_len = context_length(config, model, num_blocks, layout)
    adapter_bytes = ADAPTER_BYTES if config.adapter_device_bytes is None else config.adapter_device_bytes
    table_bytes = adapter_bytes * AdapterTables.bytes_per_element(dtype) // dtype.itemsize
    tables = AdapterTables(config.max_adapters, dtype, table_bytes)

    def make_path(adapter_in: AdapterIn) -> DevicePath:
        # A number that was asked for is kept.
        threads = None if config.num_threads else AdaptedThreads(most, linux_usage, len(os.sched_getaffinity(0)))
        cache = GeneralCache(decoder.layers, num_blocks * config.block_size, dtype, layout)
        return GeneralPath(decoder, cache, config.block_size, adapter_in, tables, threads)

    return Device(
        num_blocks=num_blocks,
        max_model_len=max_model_len,
        token_bytes=token_bytes,
        adapter_bytes=adapter_bytes,
        transfers=HostTransfers(),
        choose=choose_on_host,
        make_path=make_path,
        expect=tables.expect,
        layout=layout,
        model=model,
    )
