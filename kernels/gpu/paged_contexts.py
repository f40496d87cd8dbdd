"""The keys and values of a batch's sequences, in the form that attention on a GPU reads. Knows no kernel."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from kernels.gpu.query_tiles import QueryTiles


class PagedContexts(NamedTuple):
    """B sequences in a paged cache."""

    block_tables: Tensor
    """[B, M] int32, any number where a sequence has no block."""
    context_lens: Tensor
    """[B] int32: all positions, those of the queries included; 0 for a row that is padding."""
    query_starts: Tensor
    """[B + 1] int32: rows [query_starts[b], query_starts[b + 1]) of q are the sequence's newest positions."""
    max_context_len: int
    """An upper bound of all `context_lens`, known without reading the device; it shapes the grid of decode kernels."""
    block_size: int
    tiles: QueryTiles | None = None
    """The tiles of the queries; None where every sequence has one query."""
