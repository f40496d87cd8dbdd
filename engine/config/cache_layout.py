"""Divide a model's layers into tables over the KV cache, so that blocks behind a window are freed for all layers.

A block has the keys and values of `block_size` tokens in a few layers, as many as the layout is deep. The blocks of all
layers come from one pool and are equally large: whatever a window leaves is at once room for any layer. A sequence has
a table of blocks for each group of layers that share one, and all layers of a table have the same window. The k-th
layers of all tables share a tensor, of which each block belongs to one table at a time.

Layers are divided as evenly as their numbers allow: with 5 layers that see everything and 29 that do not, blocks are 5
layers deep, one table is of the former and six are of the latter, and one layer in the last of them is not used.
Knows no device and no scheduler.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

COST_OF_TABLE = 1 / 400
"""The part of the cache's room that one more table has to gain.

Each step copies the tables of its sequences.
"""


class Place(NamedTuple):
    """The place of a layer's keys and values in the cache."""

    table: int = 0
    """The number of the layer's table."""
    depth: int = 0
    """The number of the tensor that the layer shares with a layer of each other table."""


class CacheLayout(msgspec.Struct, frozen=True):
    """The tables of a model's layers."""

    windows: tuple[int | None, ...] = (None,)
    """For each table the most tokens that a position of its layers sees, itself included; None: all."""
    places: dict[int, Place] = {}
    """The place of each layer that has keys and values."""
    depth: int = 1
    """The number of layers of a block."""

    @property
    def num_tables(self) -> int:
        """The number of tables that a sequence has."""
        return len(self.windows)

    def block_bytes(self, token_bytes: int, block_size: int) -> int:
        """Return the bytes of a block. token_bytes: the bytes of a token's keys and values in all layers."""
        return token_bytes * self.depth // max(len(self.places), 1) * block_size

    def reserves(self, num_ahead: int, block_size: int) -> list[int | None]:
        """Return for each table the most blocks that a sequence has in it at a time; None: as many as its tokens take.

        num_ahead: the most tokens beyond the computed ones that blocks are taken for.
        """
        return [None if window is None else -(-(window + num_ahead) // block_size) + 1 for window in self.windows]

    def longest(self, num_blocks: int, num_ahead: int, block_size: int) -> int | None:
        """Return the tokens of the longest sequence that never has more than num_blocks blocks; None: any.

        num_ahead: as for `reserves`.
        """
        reserves = sorted(self.reserves(num_ahead, block_size), key=lambda most: (most is None, most))
        left = num_blocks
        for place, reserve in enumerate(reserves):
            num_equal = len(reserves) - place
            if reserve is None or reserve * num_equal > left:  # no longer table is full before this one
                return left // num_equal * block_size
            left -= reserve
        return None


def one_table(windows: Mapping[int, int | None]) -> CacheLayout:
    """Return the layout with one table for all layers. windows: as for `layout_of`."""
    seen = set(windows.values())
    longest = None if None in seen or not seen else max(window for window in seen if window is not None)
    places = {layer: Place(0, depth) for depth, layer in enumerate(windows)}
    return CacheLayout((longest,), places, max(len(places), 1))


def layout_of(windows: Mapping[int, int | None], max_length: int) -> CacheLayout:
    """Return the layout that has most room for sequences of up to max_length tokens.

    windows: for each layer with keys and values the tokens that a position sees, itself included; None: all. One table
    is enough where all layers see the same, and where others would cost more than they save.
    """
    kinds: dict[int | None, list[int]] = {}
    for layer, window in windows.items():
        kinds.setdefault(None if window is None or window >= max_length else window, []).append(layer)
    if len(kinds) < 2:
        return one_table(windows)
    kinds = dict(sorted(kinds.items(), key=lambda kind: (kind[0] is not None, kind[0] or 0)))
    num_layers = len(windows)
    saved = sum(len(layers) * (1 - (window or max_length) / max_length) for window, layers in kinds.items())
    numbers = [len(layers) for layers in kinds.values()]
    depth = min(range(1, min(numbers) + 1), key=lambda depth: _cost(numbers, depth))
    if _cost(numbers, depth) > saved / num_layers / 2:
        return one_table(windows)
    tables: list[int | None] = []
    places: dict[int, Place] = {}
    for window, layers in kinds.items():
        for number, layer in enumerate(layers):
            places[layer] = Place(len(tables) + number // depth, number % depth)
        tables += [window] * -(-len(layers) // depth)
    return CacheLayout(tuple(tables), places, depth)


def _cost(numbers: list[int], depth: int) -> float:
    """Return the waste of blocks of `depth` layers as a share of the cache's room: unused layers, and the tables.

    numbers: the number of layers of each window.
    """
    num_tables = sum(-(-number // depth) for number in numbers)
    return num_tables * depth / sum(numbers) - 1 + num_tables * COST_OF_TABLE
