"""The batch of sequences in paged caches on which attention is measured; the sequences' blocks lie in any order."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernels.bench.case import relative_error
from kernels.bench.shapes import Shape
from kernels.gpu.attention import paged_attention_, paged_attention_reference, workspace_elements
from kernels.gpu.paged_contexts import PagedContexts
from kernels.gpu.query_tiles import query_tiles
from kernels.gpu.tuning import queries_at_once

BLOCK_SIZE = 16


class PagedBatch:
    """A batch of sequences. lengths: (context, queries) of each. Each of the caches holds all of the sequences."""

    def __init__(self, shape: Shape, lengths: Sequence[tuple[int, int]]) -> None:
        heads, kv_heads, head_dim, device = shape.num_heads, shape.num_kv_heads, shape.head_dim, shape.device
        contexts, queries = zip(*lengths, strict=True)
        num_blocks = -(-max(contexts) // BLOCK_SIZE)
        tables = torch.randperm(len(lengths) * num_blocks).view(len(lengths), -1).int().to(device)
        starts = torch.tensor([0, *queries]).cumsum(0).int()
        self._lengths = torch.tensor(contexts), starts
        self.contexts = PagedContexts(
            tables,
            torch.tensor(contexts, dtype=torch.int32, device=device),
            starts.to(device),
            max(contexts),
            BLOCK_SIZE,
        )
        self.caches = [shape.randn(2, kv_heads, tables.numel() * BLOCK_SIZE, head_dim) for _ in range(shape.num_copies)]
        self.q = shape.randn(int(starts[-1]), heads, head_dim)
        self.out = torch.empty_like(self.q)
        if max(queries) > 1:
            self.contexts = self.tiled(queries_at_once(head_dim, heads // kv_heads, shape.dtype, device))
        elements = workspace_elements(len(self.q), heads, kv_heads, head_dim, max(contexts), shape.dtype, device)
        self.workspace = torch.empty(8 * elements, dtype=torch.float32, device=device)  # room for other splits

    def tiled(self, queries_at_once: int) -> PagedContexts:
        """Return the contexts with their queries in tiles of another size."""
        tiles = query_tiles(*self._lengths, queries_at_once)
        return self.contexts._replace(tiles=tiles._replace(tiles=tiles.tiles.to(self.q.device)))

    def run(self) -> None:
        """Attend in each of the caches."""
        for cache in self.caches:
            paged_attention_(self.out, self.q, cache, self.contexts, self.workspace)

    def error(self) -> float:
        """Return the relative error of the kernel's result in the first cache; for decodes, the error of eight rows."""
        paged_attention_(self.out, self.q, self.caches[0], self.contexts, self.workspace)
        ours = self.out.flatten(1)
        if self.contexts.tiles is not None:
            return relative_error(ours, paged_attention_reference(self.q, self.caches[0], self.contexts))
        some = min(len(self.q), 8)
        contexts = self.contexts._replace(context_lens=self.contexts.context_lens[:some])
        return relative_error(ours[:some], paged_attention_reference(self.q[:some], self.caches[0], contexts))
