"""A computed prefix is found again by the same tenant under the same adapter, and by nobody else."""

from __future__ import annotations

import pytest

from engine.config.cache_layout import CacheLayout
from engine.protocol import GenerateRequest, SamplingParams
from engine.scheduling.block_manager import BlockManager
from engine.sequence import Sequence

BLOCK_SIZE = 4
PROMPT = list(range(11))  # two full blocks and a part


def sequence(token_ids: list[int], tenant: str = "a", adapter: str = "") -> Sequence:
    request = GenerateRequest("r", token_ids, SamplingParams(8), tenant, adapter)
    return Sequence(request, list(token_ids), seed=0, arrived_s=0.0)


def compute(blocks: BlockManager, token_ids: list[int], tenant: str = "a", adapter: str = "") -> Sequence:
    """Start a sequence and compute all its tokens."""
    computed = sequence(token_ids, tenant, adapter)
    assert blocks.start(computed, num_spare=0, use_cache=True)
    computed.num_computed = len(token_ids)
    blocks.register(computed, computed.num_computed)
    blocks.check_integrity([computed])
    return computed


def test_a_running_sequence_shares_its_full_blocks() -> None:
    blocks = BlockManager(8, BLOCK_SIZE)
    first = compute(blocks, PROMPT)
    second = sequence([*PROMPT, 50, 51])
    assert blocks.start(second, num_spare=0, use_cache=True)
    assert (second.num_computed, second.block_tables[0][:2]) == (8, first.block_tables[0][:2])
    assert second.block_tables[0][2:] != first.block_tables[0][2:]
    blocks.check_integrity([first, second])
    blocks.release(first)
    blocks.check_integrity([second])


def test_a_finished_sequence_leaves_its_generated_tokens_for_the_next_turn() -> None:
    blocks = BlockManager(8, BLOCK_SIZE)
    first = compute(blocks, PROMPT)
    first.token_ids += [60, 61, 62]
    assert blocks.grow(first, len(first.token_ids))
    first.num_computed = 13  # the last token sampled is not computed yet
    blocks.register(first, first.num_computed)
    blocks.release(first)
    assert blocks.num_cached_tokens(sequence([*PROMPT, 60, 61, 62, 70])) == 12


@pytest.mark.parametrize(
    ("tenant", "adapter", "found"), [("a", "x", 8), ("b", "x", 0), ("a", "y", 0), ("a", "", 0), ("ax", "", 0)]
)
def test_only_the_same_tenant_and_adapter_find_a_prefix(tenant: str, adapter: str, found: int) -> None:
    blocks = BlockManager(8, BLOCK_SIZE)
    blocks.release(compute(blocks, PROMPT, "a", "x"))
    assert blocks.num_cached_tokens(sequence(PROMPT, tenant, adapter)) == found


def test_a_prompt_that_is_cached_whole_still_computes_its_last_token() -> None:
    blocks = BlockManager(8, BLOCK_SIZE)
    blocks.release(compute(blocks, PROMPT[:8]))
    assert blocks.num_cached_tokens(sequence(PROMPT[:8])) == 4
    assert blocks.num_cached_tokens(sequence(PROMPT[:9])) == 8


def test_a_difference_in_an_early_block_hides_the_later_ones() -> None:
    blocks = BlockManager(8, BLOCK_SIZE)
    blocks.release(compute(blocks, PROMPT))
    other = [99, *PROMPT[1:]]
    assert blocks.num_cached_tokens(sequence(other)) == 0
    blocks.release(compute(blocks, other[:BLOCK_SIZE]))
    assert blocks.num_cached_tokens(sequence(other)) == BLOCK_SIZE


def test_what_is_not_computed_is_not_found() -> None:
    blocks = BlockManager(8, BLOCK_SIZE)
    started = sequence(PROMPT)
    assert blocks.start(started, num_spare=0, use_cache=True)
    started.num_computed = 7  # half of the second block
    blocks.register(started, started.num_computed)
    assert blocks.num_cached_tokens(sequence(PROMPT)) == 4


def test_a_sequence_that_needs_every_position_gets_blocks_of_its_own() -> None:
    blocks = BlockManager(8, BLOCK_SIZE)
    first = compute(blocks, PROMPT)
    second = sequence(PROMPT)
    assert blocks.start(second, num_spare=0, use_cache=False)
    assert second.num_computed == 0 and not set(second.block_tables[0]) & set(first.block_tables[0])
    second.num_computed = len(PROMPT)
    blocks.register(second, second.num_computed)
    blocks.check_integrity([first, second])


def test_the_cache_gives_way_oldest_first_and_tails_before_heads() -> None:
    blocks = BlockManager(5, BLOCK_SIZE)
    blocks.release(compute(blocks, [1] * 8))
    blocks.release(compute(blocks, [2] * 8))  # four cached blocks, one empty
    newcomer = sequence([3] * 8)
    assert blocks.start(newcomer, num_spare=0, use_cache=True)
    blocks.check_integrity([newcomer])
    assert blocks.num_cached_tokens(sequence([1] * 9)) == 4
    assert blocks.num_cached_tokens(sequence([2] * 9)) == 8


def test_a_cached_prefix_is_not_evicted_to_make_room_for_its_own_sequence() -> None:
    blocks = BlockManager(4, BLOCK_SIZE)
    blocks.release(compute(blocks, [1] * 8))
    longer = sequence([1] * 8 + [2] * 8)
    assert not blocks.start(longer, num_spare=1, use_cache=True)
    blocks.check_integrity([])
    assert blocks.start(longer, num_spare=0, use_cache=True)
    assert longer.num_computed == 8
    blocks.check_integrity([longer])


def test_blocks_that_two_sequences_compute_at_once_are_kept_once() -> None:
    blocks = BlockManager(8, BLOCK_SIZE)
    twins = [sequence(PROMPT), sequence(PROMPT)]
    for twin in twins:
        assert blocks.start(twin, num_spare=0, use_cache=True)
    for twin in twins:
        twin.num_computed = len(PROMPT)
        blocks.register(twin, twin.num_computed)
    blocks.check_integrity(twins)
    for twin in twins:
        blocks.release(twin)
    blocks.check_integrity([])
    assert blocks.num_free == 8


def test_blocks_that_no_window_reaches_are_taken_back_and_not_asked_for() -> None:
    """With a window of 6, position 12 sees the last position of block 1, all of block 2 and itself."""
    blocks = BlockManager(4, BLOCK_SIZE, CacheLayout((6,)))
    first = compute(blocks, list(range(12)))
    assert (first.num_past, first.num_blocks, blocks.num_free) == ([1], 2, 2)
    second = sequence(list(range(50, 58)))  # takes the empty block, and the one that was taken back
    assert blocks.start(second, num_spare=0, use_cache=True)
    blocks.check_integrity([first, second])
    blocks.release(first)
    third = sequence([*range(12), 70])
    assert blocks.num_cached_tokens(third) == 12  # without its first block
    assert blocks.num_cached_tokens(sequence([*range(4), 70])) == 0
    blocks.release(second)
    assert blocks.start(third, num_spare=0, use_cache=True)
    assert (third.num_computed, third.num_past, third.num_blocks) == (12, [1], 3)
    blocks.check_integrity([third])
