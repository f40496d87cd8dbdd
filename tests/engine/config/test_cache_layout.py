"""Layers are divided into tables whose blocks are equally large, and no more tables than are worth their cost."""

from __future__ import annotations

import random

import pytest

from engine.config.cache_layout import CacheLayout, layout_of, one_table


def windows(num_full: int, num_windowed: int, window: int = 512) -> dict[int, int | None]:
    """Return the windows of layers, of which those that see everything come last."""
    return dict(enumerate([*[window] * num_windowed, *[None] * num_full]))


@pytest.mark.parametrize(
    ("num_full", "num_windowed", "depth", "num_tables"),
    [
        (3, 15, 3, 6),  # Gemma 3 270M
        (4, 22, 2, 13),  # Gemma 3 1B
        (5, 29, 5, 7),  # Gemma 3 4B: one of 35 places is not used
        (12, 12, 12, 2),  # gpt-oss 20B
        (8, 24, 8, 4),  # OLMo 3 7B
        (27, 1, 28, 1),  # blocks of one layer would save less than 28 tables cost
        (32, 0, 32, 1),
        (0, 32, 32, 1),
    ],
)
def test_tables_are_as_few_and_blocks_as_deep_as_pays(
    num_full: int, num_windowed: int, depth: int, num_tables: int
) -> None:
    layout = layout_of(windows(num_full, num_windowed), max_length=32_768)
    assert (layout.depth, layout.num_tables) == (depth, num_tables)


def test_a_window_that_no_text_outgrows_is_none() -> None:
    assert layout_of(windows(4, 4, window=4096), max_length=4096) == one_table(windows(4, 4, window=4096))
    assert layout_of(windows(4, 4, window=4096), max_length=40_960).num_tables == 2


@pytest.mark.parametrize("seed", range(50))
def test_each_layer_has_a_place_of_its_own_in_a_table_of_its_window(seed: int) -> None:
    rnd = random.Random(seed)
    of_layers = {layer: rnd.choice([None, None, 128, 1024]) for layer in range(rnd.randint(1, 40))}
    layout = layout_of(of_layers, max_length=32_768)
    assert layout.places.keys() == of_layers.keys()
    assert len(set(layout.places.values())) == len(of_layers)
    assert {place.table for place in layout.places.values()} == set(range(layout.num_tables))
    assert {place.depth for place in layout.places.values()} == set(range(layout.depth))
    if layout.num_tables > 1:
        assert all(layout.windows[place.table] == of_layers[layer] for layer, place in layout.places.items())
        assert layout.num_tables * layout.depth < 1.5 * len(of_layers)


@pytest.mark.parametrize("seed", range(50))
def test_the_longest_sequence_just_fits(seed: int) -> None:
    rnd = random.Random(seed)
    layout = CacheLayout(tuple(rnd.choice([None, 5, 20, 100]) for _ in range(rnd.randint(1, 5))))
    num_blocks, num_ahead, size = rnd.randint(5, 200), rnd.choice([2, 64]), 4

    def taken(num_tokens: int) -> int:
        reserves = layout.reserves(num_ahead, size)
        return sum(-(-num_tokens // size) if most is None else min(-(-num_tokens // size), most) for most in reserves)

    longest = layout.longest(num_blocks, num_ahead, size)
    if longest is None:
        assert taken(1 << 40) <= num_blocks
    else:
        assert taken(longest) <= num_blocks < taken(longest + 1)
