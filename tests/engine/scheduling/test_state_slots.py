"""Slots for states: which snapshots stay, and what a sequence begins with."""

from __future__ import annotations

import msgspec

from engine.protocol import BatchTerms
from engine.scheduling.block_manager import BlockManager
from engine.scheduling.cache.state_slots import StateSlots
from engine.sequence import Chunk, Sequence
from tests.engine.scheduling.test_prefix_cache import BLOCK_SIZE, sequence

TEXTS = [list(range(first, first + 9)) for first in (0, 100, 200, 300)]  # two full blocks and a token each


def manager(num_slots: int, num_blocks: int = 40) -> BlockManager:
    return BlockManager(num_blocks, BLOCK_SIZE, states=StateSlots(num_slots))


def start(blocks: BlockManager, token_ids: list[int], *, is_batch: bool = False) -> Sequence:
    started = sequence(token_ids)
    if is_batch:
        started.request = msgspec.structs.replace(started.request, batch=BatchTerms())
    assert blocks.start(started, num_spare=0, use_cache=True)
    return started


def finish(blocks: BlockManager, running: Sequence) -> None:
    """Compute all tokens of a sequence, then end it."""
    running.num_computed = len(running.token_ids)
    blocks.register(running, running.num_computed)
    blocks.check_integrity([running])
    blocks.release(running)
    blocks.check_integrity([])


def compute(blocks: BlockManager, token_ids: list[int], *, is_batch: bool = False) -> int:
    """Compute a text as a sequence and end the sequence; return the number of its tokens that were cached.

    is_batch: True: the sequence is batch work.
    """
    running = start(blocks, token_ids, is_batch=is_batch)
    num_cached = running.num_computed
    finish(blocks, running)
    return num_cached


def test_the_snapshot_that_was_not_used_for_the_longest_time_leaves() -> None:
    blocks = manager(num_slots=4)
    for text in TEXTS[:3]:
        assert compute(blocks, text) == 0
    assert compute(blocks, TEXTS[0]) == 8
    assert compute(blocks, TEXTS[3]) == 0
    assert [blocks.num_cached_tokens(sequence(text)) for text in TEXTS] == [8, 0, 8, 8]


def test_batch_work_takes_no_place_from_recent_snapshots_of_interactive_requests() -> None:
    blocks = manager(num_slots=3)
    compute(blocks, TEXTS[0])
    compute(blocks, TEXTS[1])
    compute(blocks, TEXTS[2], is_batch=True)  # its own slot is the only one that is free
    assert [blocks.num_cached_tokens(sequence(text)) for text in TEXTS[:3]] == [8, 8, 0]
    for _ in range(2):
        blocks.age()
    compute(blocks, TEXTS[2], is_batch=True)
    assert [blocks.num_cached_tokens(sequence(text)) for text in TEXTS[:3]] == [0, 8, 8]


def test_a_snapshot_stays_until_the_step_that_begins_with_it_is_done() -> None:
    blocks = manager(num_slots=2)
    compute(blocks, TEXTS[0])
    reader = start(blocks, TEXTS[0])
    chunk = Chunk.of(reader, reader.num_computed, 1)
    assert chunk.states is not None and chunk.states.source not in (None, chunk.states.slot)
    assert not blocks.start(sequence(TEXTS[1]), num_spare=0, use_cache=True)
    assert blocks.lacks_slot(sequence(TEXTS[1]), use_cache=True)
    blocks.check_integrity([reader])
    reader.num_computed = 9
    blocks.register(reader, 9)
    other = start(blocks, TEXTS[1])
    assert other.state_slot == chunk.states.source
    blocks.check_integrity([reader, other])


def test_a_snapshot_goes_with_the_block_before_it() -> None:
    blocks = manager(num_slots=8, num_blocks=4)
    compute(blocks, TEXTS[0])
    compute(blocks, TEXTS[1])  # takes blocks of the first text
    states = blocks.states
    assert states is not None and len(states.contents) == 1


def test_texts_that_part_leave_a_snapshot_where_they_do() -> None:
    blocks = manager(num_slots=8)
    common = list(range(13))
    compute(blocks, [*common, *range(50, 60)])
    second = start(blocks, [*common, *range(60, 70)])
    assert (second.num_computed, [position for position, _ in second.snapshots]) == (0, [12, 20])
    chunks = [Chunk.of(second, 0, 12), Chunk.of(second, 12, 7), Chunk.of(second, 19, 4)]
    taken = [chunk.states.snapshots for chunk in chunks if chunk.states is not None]
    assert taken == [(second.snapshots[0],), (), (second.snapshots[1],)]
    finish(blocks, second)
    assert blocks.num_cached_tokens(sequence([*common, *range(70, 80)])) == 12


def test_a_snapshot_that_is_not_taken_yet_is_found_by_nobody_and_goes_with_its_sequence() -> None:
    blocks = manager(num_slots=4)
    running = start(blocks, TEXTS[0])
    running.num_computed = 5
    blocks.register(running, 5)
    assert blocks.num_cached_tokens(sequence(TEXTS[0])) == 0
    blocks.release(running)
    blocks.check_integrity([])
    states = blocks.states
    assert states is not None and states.num_free == 4 and not states.contents
