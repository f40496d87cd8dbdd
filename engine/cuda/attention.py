"""Attention on a GPU: the paged cache of every layer, and one step's rows over it. Knows nothing of requests."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.cuda.fill import Extent
from engine.cuda.metadata import StepFields
from engine.cuda.norm import TritonNorm
from engine.models.rope import cos_and_sin
from engine.models.weights import LayerWeights
from kernels.gpu.attention import paged_attention, workspace_elements
from kernels.gpu.paged_contexts import PagedContexts
from kernels.gpu.rope_kv import HeadNorms, rope_and_write_kv_


class PagedCache:
    """Keys and values of all layers in num_blocks blocks, and the angles of every position below max_position."""

    def __init__(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_size: int,
        max_position: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.config = config
        self.block_size = block_size
        cos, sin = cos_and_sin(config.rope, config.head_dim, max_position)
        self.cos, self.sin = cos.to(device), sin.to(device)
        shape = (2, config.num_kv_heads, num_blocks * block_size, config.head_dim)
        self.layers = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(config.num_layers)]


class PagedAttention:
    """One step over the cache (`engine.models.decoder.StepAttention`). Decode rows come first; where they are not
    alone, their contexts and those of prefill chunks are attended to by kernels of their own."""

    def __init__(self, cache: PagedCache, fields: StepFields[Tensor], extent: Extent) -> None:
        self._cache = cache
        self._positions, self._slots = fields.positions, fields.slots
        self._num_decodes = extent.num_decode_rows
        self._decodes = _contexts(cache, fields, slice(0, self._num_decodes), 1, extent.decode_context)
        # A chunk of one token, too, is attended to as a chunk: rows of decodes come before it in q.
        prefill_queries = max(extent.prefill_queries, 2)
        self._prefills = _contexts(
            cache, fields, slice(self._num_decodes, None), prefill_queries, extent.prefill_context
        )
        config = cache.config
        num_elements = workspace_elements(
            self._num_decodes,
            config.num_heads,
            config.num_kv_heads,
            config.head_dim,
            extent.decode_context,
            cache.layers[0].dtype,
            fields.positions.device,
        )
        self._workspace = torch.empty(num_elements, dtype=torch.float32, device=fields.positions.device)

    def attend(self, index: int, layer: LayerWeights, qkv: Tensor) -> Tensor:
        cache, memory = self._cache, self._cache.layers[index]
        q = rope_and_write_kv_(qkv, self._positions, cache.cos, cache.sin, memory, self._slots, _head_norms(layer))
        window, num_decodes = cache.config.sliding_window, self._num_decodes
        if num_decodes == len(q):
            return paged_attention(q, memory, self._decodes, self._workspace, window)
        out = paged_attention(q, memory, self._prefills, self._workspace, window)
        if num_decodes:
            out[:num_decodes] = paged_attention(q[:num_decodes], memory, self._decodes, self._workspace, window)
        return out


def _contexts(
    cache: PagedCache, fields: StepFields[Tensor], sequences: slice, max_query_len: int, max_context_len: int
) -> PagedContexts:
    starts = slice(sequences.start, None if sequences.stop is None else sequences.stop + 1)
    return PagedContexts(
        fields.block_tables[sequences],
        fields.context_lens[sequences],
        fields.query_starts[starts],
        max_query_len,
        max_context_len,
        cache.block_size,
    )


def _head_norms(layer: LayerWeights) -> HeadNorms | None:
    if layer.q_norm is None or layer.k_norm is None:
        return None
    assert isinstance(layer.q_norm, TritonNorm) and isinstance(layer.k_norm, TritonNorm)
    return HeadNorms(layer.q_norm.weight, layer.k_norm.weight, layer.q_norm.eps)
