"""Tables with windows keep what the next token sees, beside tables that keep everything, and prefixes stay right."""

from __future__ import annotations

import random

import pytest

from engine.config.cache_layout import CacheLayout, layout_of
from engine.lora.layer import LoadedAdapter
from engine.protocol import BatchTerms, GenerateRequest, SamplingParams
from engine.scheduling.block_manager import BlockManager
from engine.scheduling.limits import Limits
from engine.scheduling.running_set import AdapterSlots
from engine.scheduling.scheduler import Scheduler
from engine.sequence import Sequence
from tests.engine.scheduling.scheduler_model import EOS, VOCAB, HashingRunner, expected_choice

SIZE = 4
FULL_AND_SIX = CacheLayout((None, 6))


def sequence(token_ids: list[int]) -> Sequence:
    return Sequence(GenerateRequest("r", token_ids, SamplingParams(8), "a"), list(token_ids), seed=0, arrived_s=0.0)


def compute(blocks: BlockManager, token_ids: list[int], step: int = 4) -> Sequence:
    """Start a sequence and compute all its tokens, `step` at a time."""
    computed = sequence(token_ids)
    assert blocks.start(computed, num_spare=0, use_cache=True)
    while computed.num_computed < len(token_ids):
        end = min(computed.num_computed + step, len(token_ids))
        assert blocks.grow(computed, end)
        computed.num_computed = end
        blocks.register(computed, end)
        blocks.check_integrity([computed])
    return computed


def test_a_table_with_a_window_leaves_behind_what_no_token_sees() -> None:
    """With a window of 6, position 24 sees positions 19 to 24: the end of block 4, and block 5."""
    blocks = BlockManager(12, SIZE, FULL_AND_SIX)
    first = compute(blocks, list(range(24)))
    assert (first.num_past, first.num_blocks, blocks.num_free) == ([0, 4], 8, 4)


def test_a_long_prompt_takes_blocks_of_a_window_as_far_as_two_steps_reach() -> None:
    """6 tokens of the window and 8 of two steps lie in at most 5 blocks, of the 25 that all tokens take."""
    blocks = BlockManager(30, SIZE, FULL_AND_SIX, num_ahead=8)
    prompt = sequence(list(range(100)))
    assert blocks.num_needed(prompt, use_cache=True) == 25 + 5
    first = compute(blocks, list(range(100)))
    assert first.num_blocks == 25 + 2
    assert blocks.max_room(prompt) == (27 + 5) * SIZE  # with 8 tokens to come


def test_a_prefix_takes_all_blocks_of_one_table_and_the_last_ones_of_the_other() -> None:
    blocks = BlockManager(14, SIZE, FULL_AND_SIX)
    blocks.release(compute(blocks, list(range(24))))
    second = sequence([*range(24), 70])
    assert blocks.num_cached_tokens(second) == 24
    assert blocks.start(second, num_spare=0, use_cache=True)
    assert (second.num_computed, second.num_past, second.num_blocks) == (24, [0, 4], 7 + 3)
    blocks.check_integrity([second])


def test_a_prefix_without_the_blocks_of_its_window_is_not_found() -> None:
    """The blocks that a window left behind were released first and are evicted first: then only the end is whole."""
    blocks = BlockManager(12, SIZE, FULL_AND_SIX)
    blocks.release(compute(blocks, list(range(24))))
    assert blocks.num_cached_tokens(sequence([*range(16), 70])) == 16
    blocks.release(compute(blocks, list(range(50, 58))))  # takes four
    assert blocks.num_cached_tokens(sequence([*range(16), 70])) == 0
    assert blocks.num_cached_tokens(sequence([*range(24), 70])) == 24


def test_blocks_of_equal_tokens_are_not_shared_between_tables() -> None:
    blocks = BlockManager(12, SIZE, CacheLayout((None, 20)))
    first = compute(blocks, list(range(8)))
    second = sequence([*range(8), 9])
    assert blocks.start(second, num_spare=0, use_cache=True)
    assert second.block_tables[0][:2] == first.block_tables[0] and second.block_tables[1][:2] == first.block_tables[1]
    assert not {*second.block_tables[0]} & {*second.block_tables[1]}
    blocks.check_integrity([first, second])


@pytest.mark.parametrize(("length", "before", "now"), [(512, 78, 78), (2048, 19, 52), (8192, 4, 23), (32_768, 1, 7)])
def test_a_gigabyte_holds_more_texts_of_gemma_3_1b(length: int, before: int, now: int) -> None:
    """The figures are those of the engine's README: 26 layers, of which every sixth sees everything and others 512
    tokens."""
    windows = {layer: None if (layer + 1) % 6 == 0 else 512 for layer in range(26)}
    token_bytes = 2 * len(windows) * 256 * 2
    for layout, expected in ((CacheLayout((None,), {}, 1), before), (layout_of(windows, 32_768), now)):
        block_bytes = token_bytes * 16 if not layout.places else layout.block_bytes(token_bytes, 16)
        blocks = BlockManager((1 << 30) // block_bytes, 16, layout, num_ahead=1024)
        number = 0
        while blocks.start(text := sequence([number, *[1] * (length - 1)]), num_spare=0, use_cache=False):
            while text.num_computed < length and blocks.grow(text, min(text.num_computed + 512, length)):
                text.num_computed = min(text.num_computed + 512, length)
                blocks.register(text, text.num_computed)
            number += text.num_computed == length
        assert number == expected


class NoSlots:
    """A fake pool of adapter slots for requests without adapters."""

    def is_resident(self, key: str) -> bool:
        return True

    def request(self, key: str, *, for_batch: bool = False) -> bool:
        return True

    def acquire(self, key: str, *, for_batch: bool = False) -> int | None:
        return None

    def release(self, slot: int, *, for_batch: bool = False) -> None: ...

    def is_reclaimed(self, slot: int) -> bool:
        return False


def workload(rnd: random.Random) -> list[GenerateRequest]:
    """Return requests of two tenants, many of which share prefixes."""
    text = [rnd.randrange(VOCAB) for _ in range(60)]
    requests = []
    for number in range(8):
        length = rnd.randrange(1, 50)
        shared = rnd.choice([0, length, length, max(0, length - 3)])
        prompt = [*text[:shared], *[rnd.randrange(VOCAB) for _ in range(length - shared)]]
        sampling = SamplingParams(rnd.randrange(1, 60 - length), ignore_eos=True)
        requests.append(GenerateRequest(f"r{number}", prompt, sampling, rnd.choice("ab")))
    return requests


@pytest.mark.parametrize("seed", [*range(20), 165, 322])
def test_prompts_whose_windows_others_share_give_way_and_get_their_texts(seed: int) -> None:
    """Memory is hardly more than the longest text takes. Blocks that the window of a prompt leaves behind are not
    free while others share them: then the prompt waits for its next block, or gives way."""
    rnd = random.Random(seed)
    layout = CacheLayout(rnd.choice([(None, 3, 9), (3,), (None, 2, 2, 2), (None, 12), (2, 16)]))
    batched = rnd.choice([3, 5, 9])
    reserves = layout.reserves(2 * batched, SIZE)
    num_blocks = sum(15 if most is None else min(15, most) for most in reserves) + rnd.choice([0, 0, 1, 2, 5, 9, 15])
    limits = Limits(
        max_num_seqs=min(4, batched),
        max_batched_tokens=batched,
        max_waiting=32,
        max_model_len=60,
        vocab_size=VOCAB,
        eos_token_ids=frozenset({EOS}),
        token_bytes=1,
    )
    blocks = BlockManager(num_blocks, SIZE, layout, num_ahead=2 * batched)
    slots: AdapterSlots = NoSlots()
    scheduler = Scheduler(blocks, slots, limits, lambda: 0.0)
    runner = HashingRunner(num_blocks, SIZE, lambda slot: LoadedAdapter("", {}, 0), layout.windows)
    waiting = list(enumerate(workload(rnd)))
    expected = {r.request_id: expected_choice(r, number, windows=layout.windows).shown for number, r in waiting}
    found: dict[str, list[int]] = {name: [] for name in expected}
    while waiting or not scheduler.is_empty:
        if waiting and rnd.random() < 0.15:
            number, request = waiting.pop(0)
            assert scheduler.add(request, seed=number) is None
        plan = scheduler.schedule()
        assert plan or not scheduler.num_running, "nobody goes on"
        scheduler.launched(plan)
        for delta in scheduler.commit(plan, runner.run(plan)).deltas:
            found[delta.request_id] += delta.token_ids
        scheduler.check_integrity()
    assert found == expected
    assert blocks.num_free == num_blocks


def test_batch_work_gives_back_the_cache_where_all_layers_have_windows() -> None:
    """Batch work takes what it may of 352 blocks, of which the guaranteed share covers an eighth: 44.

    Each sequence has 11. Interactive requests that come one after the other take what is free, and then what batch work
    has: each starts in the next step, and none gives way to another.
    """
    layout, batched = CacheLayout((40,)), 64
    limits = Limits(
        max_num_seqs=48,
        max_batched_tokens=batched,
        max_waiting=64,
        max_model_len=300,
        vocab_size=VOCAB,
        eos_token_ids=frozenset({EOS}),
        token_bytes=1,
    )
    blocks = BlockManager(352, SIZE, layout, num_ahead=2 * batched)
    scheduler = Scheduler(blocks, NoSlots(), limits, lambda: 0.0)
    runner = HashingRunner(352, SIZE, lambda slot: LoadedAdapter("", {}, 0), layout.windows)

    def send(number: int, length: int, batch: BatchTerms | None) -> None:
        prompt = [number % VOCAB, *[1] * (length - 1)]
        sampling = SamplingParams(200, ignore_eos=True)
        assert scheduler.add(GenerateRequest(f"r{number}", prompt, sampling, "a", batch=batch), seed=number) is None

    def step() -> list[str]:
        plan = scheduler.schedule()
        scheduler.launched(plan)
        scheduler.commit(plan, runner.run(plan))
        scheduler.note_step(plan, 0.001)
        scheduler.check_integrity()
        return [chunk.sequence.request_id for chunk in plan.chunks]

    for number in range(48):
        send(number, 48, BatchTerms())
    for _ in range(100):
        step()
    assert blocks.num_free < 10 * 11
    for number in range(100, 124):
        send(number, 48, None)
        assert f"r{number}" in step()
    for _ in range(50):
        step()
    assert scheduler.num_running == 24 and scheduler.totals.preemptions == 0


def test_a_prompt_goes_on_by_less_of_it_while_there_is_room_for_no_more() -> None:
    """A step computes 16 tokens, and the first 44 have room in the table with a window from the start. While no block
    is free, the third step computes half as many."""
    layout, batched = FULL_AND_SIX, 16
    limits = Limits(
        max_num_seqs=2,
        max_batched_tokens=batched,
        max_waiting=4,
        max_model_len=80,
        vocab_size=VOCAB,
        eos_token_ids=frozenset({EOS}),
        token_bytes=1,
    )
    blocks = BlockManager(41, SIZE, layout, num_ahead=2 * batched)
    scheduler = Scheduler(blocks, NoSlots(), limits, lambda: 0.0)
    runner = HashingRunner(41, SIZE, lambda slot: LoadedAdapter("", {}, 0), layout.windows)
    request = GenerateRequest("r", [number % VOCAB for number in range(64)], SamplingParams(8, ignore_eos=True), "a")
    assert scheduler.add(request, seed=3) is None
    found: list[int] = []

    def step() -> int:
        plan = scheduler.schedule()
        scheduler.launched(plan)
        for delta in scheduler.commit(plan, runner.run(plan)).deltas:
            found.extend(delta.token_ids)
        return sum(chunk.num_tokens for chunk in plan.prefills)

    assert [step(), step()] == [16, 16]
    others = [sequence([number]) for number in range(blocks.num_free // 2)]  # each of a block in both tables
    assert all(blocks.start(other, num_spare=0, use_cache=False) for other in others)
    assert blocks.num_free == 0
    assert step() == 8
    for other in others:
        blocks.release(other)
    assert step() == 16
    while not scheduler.is_empty:
        step()
        scheduler.check_integrity()
    assert found == expected_choice(request, 3, windows=layout.windows).shown
