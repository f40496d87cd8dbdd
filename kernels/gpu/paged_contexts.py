"""Where the sequences of a batch keep their keys and values, as attention on a GPU reads it. Knows no kernel."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from kernels.gpu.query_tiles import QueryTiles


class PagedContexts(NamedTuple):
    """B sequences in a paged cache.

    block_tables [B, M] int32, any number where a sequence has no block; context_lens [B] int32: all positions, those of
    the queries included, 0 for a row that is padding; query_starts [B + 1] int32: rows [query_starts[b],
    query_starts[b + 1]) of q are the sequence's newest positions. max_context_len: known to the host, a bound over all
    b, which shapes the grid of decodes. tiles: of the queries; None where every sequence has one.
    """

    block_tables: Tensor
    context_lens: Tensor
    query_starts: Tensor
    max_context_len: int
    block_size: int
    tiles: QueryTiles | None = None
