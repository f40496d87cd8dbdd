"""Attention on a CPU: the paged cache of every layer, and one step's rows over it.

Decodes gather whole blocks and multiply in batches, each chunk of a prompt attends by itself. Masks, made
once for all layers (`engine.cpu.batch`), tell what rows may see. Knows nothing of requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import torch
from torch import Tensor

from engine.config import ModelConfig, RopeParameters
from engine.config.cache_layout import CacheLayout, one_table
from engine.models.rope import RotaryTable, query_factors
from engine.models.weights import LayerWeights
from kernels.attention import decode_attention, prefill_attention
from kernels.capped_attention import capped_decode_attention, capped_prefill_attention
from kernels.kv_cache import write_kv
from kernels.rope import rope
from kernels.workspace import Workspace


class View(NamedTuple):
    """The part of the cache that rows see in a layer: the number of the layer's block table, and its window."""

    table: int
    window: int | None
    """The number of tokens that a row sees, itself included; None: all."""


class PrefillRows(msgspec.Struct, frozen=True):
    """One prefill chunk: rows [first, last) of the batch, over C cached positions, its own included."""

    first: int
    last: int
    slots: Tensor  # [C] int64
    visible: Tensor  # [last - first, C] bool


class AttentionRows(msgspec.Struct, frozen=True):
    """The positions and cache slots of one step's N rows.

    The first num_decodes rows are decodes, then each prefill's.
    """

    positions: Tensor  # [N] int64
    angles: Tensor  # [N] int64, the rows of the tables of angles: positions, or those of long sequences
    slots: Tensor  # [N] int64, where each row's key and value go
    num_decodes: int
    decode_blocks: Tensor  # [num_decodes, B] int64
    decode_hidden: Tensor  # [num_decodes, 1, L] bool, L = B * block_size
    prefills: Sequence[PrefillRows]


class PagedCache:
    """Keys and values of all layers in num_slots slots, and the angles of every position below max_position.

    rounded_to: a dtype that keys and values are rounded to before they are stored. layout: the layout by which layers
    share the slots; None: each layer has all of them.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_slots: int,
        max_position: int,
        dtype: torch.dtype,
        rounded_to: torch.dtype | None = None,
        layout: CacheLayout | None = None,
    ) -> None:
        self.rounded_to = rounded_to
        self.heads = config.num_heads, config.num_kv_heads
        rotated = config.num_heads + config.num_kv_heads, config.num_kv_heads
        ropes = [config.rope_of(layer) for layer in range(config.num_layers)]
        self.rotary_tables = {
            rope: RotaryTable(rope, rotated, config.head_dim, max_position, dtype) for rope in dict.fromkeys(ropes)
        }
        self.ropes: list[RopeParameters | None] = [
            None if layer in config.unrotated_layers else rope for layer, rope in enumerate(ropes)
        ]
        factors = query_factors(config, max_position)
        self.query_factors = None if factors is None else factors[:, None, None].to(dtype)  # of each position
        self.length_switch = config.length_switch
        self.softcap = config.attention_softcap
        self.gathered = Workspace(dtype, torch.device("cpu"))
        layout = layout or one_table({layer: config.window(layer) for layer in config.cached_layers})
        shape, nothing = (2, config.num_kv_heads, num_slots, config.head_dim), torch.zeros(0, dtype=dtype)
        # Zeros, not garbage: padded context is read at weight 0, and 0 * NaN is a NaN (see kernels.kv_cache).
        shared = [torch.zeros(shape, dtype=dtype) for _ in range(layout.depth if layout.places else 0)]
        places = [layout.places.get(layer) for layer in range(config.num_layers)]
        self.layers = [nothing if place is None else shared[place.depth] for place in places]
        self.views = [
            View(0 if place is None else place.table, config.window(layer)) for layer, place in enumerate(places)
        ]


class PagedAttention:
    """The attention of one step over the cache (`engine.models.decoder.StepAttention`)."""

    def __init__(self, cache: PagedCache, rows: Mapping[View, AttentionRows]) -> None:
        """Set up the attention of one step.

        rows: the same rows for each view of the model's layers, which differ in what the rows see.
        """
        self._cache = cache
        self._rows = rows
        positions, angles = next((each.positions, each.angles) for each in rows.values())
        self._query_factors = None if cache.query_factors is None else cache.query_factors[positions]
        self._rotary = {rope: table.at(angles) for rope, table in cache.rotary_tables.items()}

    def attend(self, index: int, layer: LayerWeights, qkv: Tensor) -> Tensor:
        """Attend in layer `index`, one kernel call for all decodes and one for each chunk of a prompt."""
        rows, cache = self._rows[self._cache.views[index]], self._cache.layers[index]
        num_heads, num_kv_heads = self._cache.heads
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k, v = torch.split(qkv, [num_heads, num_kv_heads, num_kv_heads], 1)
            qkv = torch.cat((layer.q_norm(q), layer.k_norm(k), v), 1)
        if (parameters := self._cache.ropes[index]) is not None:
            qkv = rope(qkv, *self._rotary[parameters])
        q, kv = torch.split(qkv, [num_heads, 2 * num_kv_heads], 1)
        if self._query_factors is not None:
            q = q * self._query_factors
        if self._cache.rounded_to is not None:
            kv = kv.to(self._cache.rounded_to).to(cache.dtype)
        write_kv(cache, kv, rows.slots)
        sinks = layer.sinks
        parts = [self._attend_prompt(q[part.first : part.last], cache, part, sinks) for part in rows.prefills]
        if rows.num_decodes:
            parts.insert(0, self._attend_decodes(q[: rows.num_decodes], cache, rows, sinks))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _attend_prompt(self, q: Tensor, cache: Tensor, part: PrefillRows, sinks: Tensor | None) -> Tensor:
        cap = self._cache.softcap or None
        if cap is not None or sinks is not None:
            return capped_prefill_attention(q, cache, part.slots, part.visible, cap, sinks)
        return prefill_attention(q, cache, part.slots, part.visible)

    def _attend_decodes(self, q: Tensor, cache: Tensor, rows: AttentionRows, sinks: Tensor | None) -> Tensor:
        cap = self._cache.softcap or None
        if cap is not None or sinks is not None:
            return capped_decode_attention(q, cache, rows.decode_blocks, rows.decode_hidden, cap, sinks)
        return decode_attention(q, cache, rows.decode_blocks, rows.decode_hidden, self._cache.gathered)
