"""Chunks of prompts beside decodes are replayed from a graph, which gives what the same operations give one by one."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import msgspec
import pytest
import torch

from engine.bench.shape.rig import Rig, decode_plan, rig_config
from engine.bench.shape.sizes import DRY, SHAPES
from engine.bench.shape.weights import RandomAdapters
from engine.cuda.graphs import StepLimits, extents_for
from engine.cuda.path import CudaPath
from engine.sequence import Chunk, Plan, Sequence
from tests.engine.cuda.recording import CountingCudaAccelerator, RecordingAccelerator

MAX_ROWS = 12  # rows of prompts beside three decodes


class Steps:
    """A rig for three sequences with its accelerator, which computes steps of the sequences started on it."""

    def __init__(self) -> None:
        self.accelerator = CountingCudaAccelerator() if torch.cuda.is_available() else RecordingAccelerator()
        model, sizes = SHAPES["tiny"], DRY._replace(slots=3)
        config = msgspec.structs.replace(rig_config(model, sizes, torch.float32), max_batched_tokens=MAX_ROWS)
        self.rig = Rig(config, model, torch.float32, self.accelerator)
        self.rig.open(RandomAdapters(model, torch.float32, [3, 2], pin=False))

    def start(self, prompt: list[int], adapter: str = "") -> Sequence:
        return self.rig.start(prompt, 4, adapter=adapter)

    def decoding(self, prompt: list[int], adapter: str = "") -> Sequence:
        """Start a sequence and compute its prompt, so that its next step is a decode."""
        sequence = self.start(prompt, adapter)
        self.rig.prefill([sequence])
        return sequence

    def logits(self, plan: Plan, rows: list[int]) -> tuple[torch.Tensor, bool]:
        """Return the logits of a plan's rows, and whether they come from a replayed graph."""
        before = self.accelerator.num_replays
        logits = self.rig.logits(plan, rows).clone()
        return logits, self.accelerator.num_replays > before


@pytest.fixture(scope="module")
def steps() -> Iterator[Steps]:
    made = Steps()
    yield made
    made.rig.pool.close()


def mixed_plan(decodes: list[Sequence], *chunks: Chunk) -> Plan:
    return Plan(decode_plan(decodes).decodes, list(chunks))


@pytest.mark.parametrize("adapters", [("", "", ""), ("0", "", "1")], ids=["base", "adapters"])
@pytest.mark.parametrize("num_decodes", [0, 1, 2])
def test_a_replayed_step_gives_what_the_launched_one_gives(
    steps: Steps, adapters: tuple[str, str, str], num_decodes: int
) -> None:
    """The other step is launched because more rows are wanted than a graph gives. The first chunk has a cached
    prefix."""
    decodes = [steps.decoding([1, 2, 3], adapters[0]), steps.decoding([4, 5], adapters[1])][:num_decodes]
    cut = steps.start([6, 7, 8, 9, 10, 11, 12], adapters[2])
    steps.rig.logits(Plan([], [Chunk.of(cut, 0, 3)]), [0])
    plan = mixed_plan(decodes, Chunk.of(cut, 3, 4), Chunk.of(steps.start([13, 14], adapters[0]), 0, 2))
    last_rows = [*range(num_decodes), num_decodes + 3, num_decodes + 5]
    replayed, from_graph = steps.logits(plan, last_rows)
    launched, also_from_graph = steps.logits(plan, last_rows * 4)
    assert from_graph and not also_from_graph
    torch.testing.assert_close(replayed, launched[: len(last_rows)], rtol=1e-4, atol=1e-4)
    steps.rig.end([chunk.sequence for chunk in plan.chunks])


def test_steps_that_go_on_from_each_other_give_what_launched_ones_give(steps: Steps) -> None:
    """Tokens, block borders and adapters change from one replay to the next, with nothing in between."""
    decodes = [steps.decoding([1, 2, 3], "0"), steps.decoding(list(range(14)), "1"), steps.decoding([9])]
    slots = [sequence.adapter_slot for sequence in decodes]
    replayed = []
    for step in range(3):
        for sequence, slot in zip(decodes, slots if step < 2 else [*slots[1:], slots[0]], strict=True):
            sequence.adapter_slot = slot
        plan = Plan([Chunk.of(each, each.num_computed, 1) for each in decodes], [])
        logits, from_graph = steps.logits(plan, [0, 1, 2])
        assert from_graph
        replayed.append((plan, [each.adapter_slot for each in decodes], logits))
        for sequence in decodes:
            sequence.num_computed += 1
            sequence.token_ids.append(5 + step)
    for plan, of_step, logits in replayed:
        for sequence, slot in zip(decodes, of_step, strict=True):
            sequence.adapter_slot = slot
        launched, from_graph = steps.logits(plan, [0, 1, 2] * 4)
        assert not from_graph
        torch.testing.assert_close(logits, launched[:3], rtol=1e-4, atol=1e-4)
    for sequence, slot in zip(decodes, slots, strict=True):
        sequence.adapter_slot = slot
    steps.rig.end(decodes)


def test_an_adapter_that_left_its_slot_is_not_kept_on_the_device_by_the_last_step(steps: Steps) -> None:
    sequence = steps.decoding([1, 2, 3], "2")
    slot = sequence.adapter_slot
    assert slot is not None
    steps.logits(decode_plan([sequence]), [0])
    weights = weakref.ref(steps.rig.pool.adapter(slot).weights)
    steps.rig.end([sequence])
    assert steps.rig.pool.unload("2")
    gc.collect()
    assert weights() is None


def test_the_buffer_holds_the_integers_of_every_graph(steps: Steps) -> None:
    """A buffer suffices for every graph, also where a graph with fewer rows has more chunks than a larger one."""
    path = steps.rig.path
    assert isinstance(path, CudaPath)
    for max_rows in (66, 81, 257, 520):
        limits = StepLimits(max_rows, min(64, max_rows), 64, min(128, max_rows), 64)
        made = CudaPath(
            steps.accelerator, path._decoder, path._cache, path._slots, path._adapter_in, limits, use_graphs=False
        )
        for extent in extents_for(limits, has_adapters=True):
            made._buffers.stage(made._shape(extent))


def test_prompts_alone_are_replayed_up_to_the_rows_of_the_largest_graph(steps: Steps) -> None:
    whole = steps.start(list(range(1, MAX_ROWS + 1)))
    assert steps.logits(Plan([], [Chunk.of(whole, 0, MAX_ROWS)]), [MAX_ROWS - 1])[1]
    steps.rig.end([whole])


def test_within_a_graph_neighbors_change_no_bit_of_decodes_or_chunks(steps: Steps) -> None:
    """The neighbors are more or fewer, longer or shorter, of other adapters; the compared decode is in another row."""
    decode, first, second = steps.decoding([1, 2, 3, 4], "0"), steps.decoding([5], "1"), steps.decoding([6, 7, 8])
    prompt = steps.start([20, 21, 22, 23, 24], "1")
    asked = Chunk.of(prompt, 0, 5)
    found = []
    for decodes, others in (
        ([decode], []),
        ([decode, second], [Chunk.of(steps.start([30, 31, 32], "0"), 0, 3)]),
        (
            [first, decode, second],
            [Chunk.of(steps.start([33]), 0, 1), Chunk.of(steps.start(list(range(6)), "1"), 0, 6)],
        ),
    ):
        place = decodes.index(decode)
        plan = Plan([Chunk.of(each, each.num_computed, 1) for each in decodes], [asked, *others])
        logits, from_graph = steps.logits(plan, [place, len(decodes) + 4])
        assert from_graph
        found.append(logits)
    assert all(torch.equal(logits, found[0]) for logits in found)
    steps.rig.end([decode, first, second, prompt])
