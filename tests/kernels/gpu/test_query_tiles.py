"""The tiles of a batch hold every query once, whatever else is in the batch, and are never more than the bound."""

from __future__ import annotations

import random

import pytest
import torch

from kernels.gpu.query_tiles import max_tiles, query_tiles


@pytest.mark.parametrize("seed", range(20))
def test_every_query_is_in_one_tile_and_those_that_see_most_are_first(seed: int) -> None:
    rnd = random.Random(seed)
    at_once, num_sequences = rnd.choice([1, 3, 16]), rnd.randint(0, 7)
    queries = [rnd.choice([0, 1, at_once, rnd.randint(1, 70)]) for _ in range(num_sequences)]
    contexts = [count and count + rnd.choice([0, rnd.randint(0, 300)]) for count in queries]
    starts = torch.tensor([4, *queries]).cumsum(0)
    tiles, of_each = query_tiles(torch.tensor(contexts), starts, at_once)
    assert of_each == at_once and tiles.dtype == torch.int32
    assert len(tiles) == max_tiles(sum(queries), num_sequences, at_once)
    cut = {(b, first): contexts[b] - count + min(first + at_once, count)
           for b, count in enumerate(queries) for first in range(0, count, at_once)}  # fmt: skip
    listed = [(int(b), int(first)) for b, first in tiles[: len(cut)]]
    assert sorted(listed) == sorted(cut)
    num_seen = [cut[tile] for tile in listed]
    assert num_seen == sorted(num_seen, reverse=True)
    assert (tiles[len(cut) :] == -1).all()


@pytest.mark.parametrize(("num_queries", "num_sequences", "at_once"), [(0, 3, 4), (2, 5, 4), (9, 3, 4), (70, 4, 16)])
def test_the_bound_is_reached_and_no_larger(num_queries: int, num_sequences: int, at_once: int) -> None:
    """The bound is reached if one sequence has all queries but one for each other sequence."""
    begun = min(num_queries, num_sequences)
    queries = [1] * (begun - 1) + [num_queries - begun + 1] if begun else []
    most = sum(-(-count // at_once) for count in queries)
    assert max_tiles(num_queries, num_sequences, at_once) == most
