"""Tiles, the work of `kernels.gpu.prefill_attention`: runs of at most `queries_at_once` queries of one sequence.

Semantics:
    tiles = (sequence, its first query) for each run of at most queries_at_once queries of a sequence; tiles that see
            most positions first; (-1, -1) beyond the last one

The queries that share a tile depend on their own sequence alone. There are as many tiles as the worst case needs
(`max_tiles`), which follows from shapes, and the kernel skips those beyond the last.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

NO_TILE = -1
Ints = NDArray[np.int64]


class QueryTiles(NamedTuple):
    """The tiles of a batch."""

    tiles: Tensor
    """[T, 2] int32, (sequence, first query) of each tile."""
    queries_at_once: int
    """The most queries of a tile."""


def max_tiles(num_queries: int, num_sequences: int, queries_at_once: int) -> int:
    """Return the most tiles that num_queries of at most num_sequences can make: every sequence may begin one."""
    begun = min(num_queries, num_sequences)
    return begun + (num_queries - begun) // queries_at_once


def fill_tiles(tiles: NDArray[np.int32], context_lens: Ints, query_lens: Ints, queries_at_once: int) -> None:
    """Write the tiles of a batch to tiles [T, 2], and `NO_TILE` beyond the last one.

    context_lens, query_lens [B]: a sequence's newest query_lens positions are queries.
    """
    per_sequence = -(-query_lens // queries_at_once)
    num_tiles = int(per_sequence.sum())
    sequence = np.repeat(np.arange(len(query_lens)), per_sequence)
    before = np.arange(num_tiles) - np.repeat(per_sequence.cumsum() - per_sequence, per_sequence)
    first = before * queries_at_once
    num_seen = (context_lens - query_lens)[sequence] + np.minimum(first + queries_at_once, query_lens[sequence])
    order = np.argsort(-num_seen, kind="stable")
    tiles[:num_tiles, 0] = sequence[order]
    tiles[:num_tiles, 1] = first[order]
    tiles[num_tiles:] = NO_TILE


def query_tiles(
    context_lens: Tensor, query_starts: Tensor, queries_at_once: int, *, num_tiles: int | None = None
) -> QueryTiles:
    """Return the tiles of sequences as in `kernels.gpu.paged_contexts`. The host waits for the lengths on the device.

    num_tiles: the number of tiles to make room for; None: as many as these queries may ever need.
    """
    lengths, starts = (tensor.cpu().numpy().astype(np.int64) for tensor in (context_lens, query_starts))
    most = max_tiles(int(starts[-1] - starts[0]), len(lengths), queries_at_once)
    tiles = np.empty((most if num_tiles is None else num_tiles, 2), dtype=np.int32)
    fill_tiles(tiles, lengths, np.diff(starts), queries_at_once)
    return QueryTiles(torch.from_numpy(tiles).to(context_lens.device), queries_at_once)
