"""Attention on a GPU: the paged cache of every layer, and one step's rows over it. Knows nothing of requests."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.config import ModelConfig, RopeParameters
from engine.config.cache_layout import CacheLayout, one_table
from engine.cuda.fill import Extent
from engine.cuda.metadata import StepFields
from engine.cuda.norm import TritonNorm
from engine.models.rope import cos_and_sin, query_factors
from engine.models.weights import LayerWeights
from kernels.gpu.attention import paged_attention_, workspace_elements
from kernels.gpu.paged_contexts import PagedContexts
from kernels.gpu.query_tiles import QueryTiles
from kernels.gpu.rope_kv import HeadNorms, rope_and_write_kv_
from kernels.gpu.tuning import queries_at_once


class PagedCache:
    """Keys and values of all layers in num_blocks blocks, and the angles of every position below max_position.

    queries_at_once: the queries of a chunk of a prompt in one program.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_size: int,
        max_position: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        layout: CacheLayout | None = None,
        in_float8: bool = False,
    ) -> None:
        """Make the cache of a model in a dtype.

        layout: the layout by which layers share the blocks; None: each layer has all of them. in_float8: keys and
        values are in e4m3, each with its scale.
        """
        self.config = config
        self.dtype = dtype
        self.block_size = block_size
        self.angles = _angles(config, max_position, device)
        factors = query_factors(config, max_position)
        self.query_factors = None if factors is None else factors[:, None, None].to(device, dtype)
        shape = (2, config.num_kv_heads, num_blocks * block_size, config.head_dim)
        group = config.num_heads // config.num_kv_heads
        self.queries_at_once = queries_at_once(config.head_dim, group, dtype, device)
        kept = torch.float8_e4m3fn if in_float8 else dtype
        layout = layout or one_table({layer: config.window(layer) for layer in config.cached_layers})
        self.num_tables = layout.num_tables
        places = [layout.places.get(layer) for layer in range(config.num_layers)]
        self.tables = [0 if place is None else place.table for place in places]
        shapes = [shape] * layout.depth + [(0,) * len(shape)]
        memory = [torch.zeros(each, dtype=kept, device=device) for each in shapes]
        scales = [torch.zeros(each[:-1], device=device) if in_float8 else None for each in shapes]
        depths = [layout.depth if place is None else place.depth for place in places]
        self.layers = [memory[depth] for depth in depths]
        self.scales: list[Tensor | None] = [scales[depth] for depth in depths]

    @property
    def in_float8(self) -> bool:
        """Tell whether keys and values are in e4m3."""
        return self.scales[0] is not None


def _angles(config: ModelConfig, max_position: int, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    """Return cos and sin of every position, [max_position, head_dim / 2] fp32 each, for each layer."""
    tables: dict[RopeParameters | None, tuple[Tensor, Tensor]] = {}
    angles = []
    for layer in range(config.num_layers):
        rope = None if layer in config.unrotated_layers else config.rope_of(layer)
        if rope not in tables:
            if rope is not None:
                cos, sin = cos_and_sin(rope, config.head_dim, max_position)
            else:  # the kernel, which writes the cache as well, turns by no angle
                cos = torch.ones(max_position + config.length_switch, config.head_dim // 2)
                sin = torch.zeros_like(cos)
            tables[rope] = cos.to(device), sin.to(device)
        angles.append(tables[rope])
    return angles


class PagedAttention:
    """The attention of one step over the cache (`engine.models.decoder.StepAttention`).

    Decode rows come first; kernels of their own attend to their contexts and to those of chunks of prompts.
    angle_rows: the rows of the tables of angles [N]; positions, unless LongRoPE has two for each.
    """

    def __init__(self, cache: PagedCache, fields: StepFields[Tensor], extent: Extent) -> None:
        config, device = cache.config, fields.angles.device
        self._cache = cache
        self.angle_rows, self._slots = fields.angles, fields.slots
        factors = cache.query_factors
        self._query_factors = None if factors is None else factors[self.angle_rows]
        self._num_decodes, self._num_prompt_rows = extent.num_decode_rows, extent.num_prompt_rows
        decodes, prefills = slice(0, self._num_decodes), slice(self._num_decodes, None)
        tiles, tables = QueryTiles(fields.tiles, cache.queries_at_once), range(cache.num_tables)
        self._decodes = [_contexts(cache, fields, table, decodes, extent.decode_context) for table in tables]
        self._prefills = [
            _contexts(cache, fields, table, prefills, extent.prefill_context)._replace(tiles=tiles) for table in tables
        ]
        heads, dtype = (config.num_heads, config.num_kv_heads, config.head_dim), cache.dtype
        num_elements = workspace_elements(self._num_decodes, *heads, extent.decode_context, dtype, device)
        self._workspace = torch.empty(num_elements, dtype=torch.float32, device=device)
        # All layers use the same buffers, one after the other. No tile holds a padding row, which stays zero, so that
        # it remains a number.
        self._out = torch.zeros(extent.num_rows, config.num_heads, config.head_dim, dtype=dtype, device=device)

    def attend(self, index: int, layer: LayerWeights, qkv: Tensor) -> Tensor:
        """Write rotated keys and values into layer `index` of the cache, then attend: decodes first, then prompts."""
        cache, memory, out, num_decodes = self._cache, self._cache.layers[index], self._out, self._num_decodes
        (cos, sin), scales, table = cache.angles[index], cache.scales[index], cache.tables[index]
        if self._query_factors is not None:  # LongRoPE has none, so that rows of angles are positions
            qkv[:, : cache.config.num_heads].mul_(self._query_factors)
        q = rope_and_write_kv_(qkv, self.angle_rows, cos, sin, memory, self._slots[table], _head_norms(layer), scales)
        more = cache.config.window(index), cache.config.attention_softcap, scales
        if num_decodes:
            paged_attention_(out[:num_decodes], q[:num_decodes], memory, self._decodes[table], self._workspace, *more)
        if self._num_prompt_rows:
            paged_attention_(out, q, memory, self._prefills[table], self._workspace, *more)
        return out.flatten(1)


def _contexts(
    cache: PagedCache, fields: StepFields[Tensor], table: int, sequences: slice, max_context_len: int
) -> PagedContexts:
    starts = slice(sequences.start, None if sequences.stop is None else sequences.stop + 1)
    return PagedContexts(
        fields.block_tables[table, sequences],
        fields.context_lens[sequences],
        fields.query_starts[starts],
        max_context_len,
        cache.block_size,
    )


def _head_norms(layer: LayerWeights) -> HeadNorms | None:
    if layer.q_norm is None or layer.k_norm is None:
        return None
    assert isinstance(layer.q_norm, TritonNorm) and isinstance(layer.k_norm, TritonNorm)
    return HeadNorms(layer.q_norm.weight, layer.k_norm.weight, layer.q_norm.eps)
