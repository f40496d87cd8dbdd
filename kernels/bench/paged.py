"""Sequences in paged caches, whose blocks lie in any order."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernels.bench.case import relative_error
from kernels.bench.shapes import Shape
from kernels.gpu.attention import paged_attention, paged_attention_reference, workspace_elements
from kernels.gpu.paged_contexts import PagedContexts

BLOCK_SIZE = 16


class PagedBatch:
    """lengths: (context, queries) of each sequence. Each of the caches holds them all."""

    def __init__(self, shape: Shape, lengths: Sequence[tuple[int, int]]) -> None:
        heads, kv_heads, head_dim, device = shape.num_heads, shape.num_kv_heads, shape.head_dim, shape.device
        contexts, queries = zip(*lengths, strict=True)
        num_blocks = -(-max(contexts) // BLOCK_SIZE)
        tables = torch.randperm(len(lengths) * num_blocks).view(len(lengths), -1).int().to(device)
        starts = torch.tensor([0, *queries]).cumsum(0).int()
        self.contexts = PagedContexts(
            tables,
            torch.tensor(contexts, dtype=torch.int32, device=device),
            starts.to(device),
            max(queries),
            max(contexts),
            BLOCK_SIZE,
        )
        self.caches = [shape.randn(2, kv_heads, tables.numel() * BLOCK_SIZE, head_dim) for _ in range(shape.num_copies)]
        self.q = shape.randn(int(starts[-1]), heads, head_dim)
        elements = workspace_elements(len(self.q), heads, kv_heads, head_dim, max(contexts), shape.dtype, device)
        self.workspace = torch.empty(8 * elements, dtype=torch.float32, device=device)  # room for other splits

    def run(self) -> None:
        for cache in self.caches:
            paged_attention(self.q, cache, self.contexts, self.workspace)

    def error(self) -> float:
        ours = paged_attention(self.q, self.caches[0], self.contexts, self.workspace)
        if self.contexts.max_query_len > 1:
            return relative_error(ours, paged_attention_reference(self.q, self.caches[0], self.contexts))
        some = min(len(self.q), 8)
        contexts = self.contexts._replace(context_lens=self.contexts.context_lens[:some])
        return relative_error(ours[:some], paged_attention_reference(self.q[:some], self.caches[0], contexts))
