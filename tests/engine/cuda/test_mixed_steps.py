"""Chunks of prompts beside decodes are replayed from a graph, which gives what the same operations give one by one."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
import torch

from engine.bench.shape.rig import Rig, decode_plan, rig_config
from engine.bench.shape.sizes import DRY, SHAPES
from engine.bench.shape.weights import RandomAdapters
from engine.sequence import Chunk, Plan, Sequence
from tests.engine.cuda.recording import CountingCudaAccelerator, RecordingAccelerator

MAX_ROWS = 12  # of prompts beside three decodes


class Steps:
    """A rig of three sequences, its accelerator, and steps of what was started."""

    def __init__(self) -> None:
        self.accelerator = CountingCudaAccelerator() if torch.cuda.is_available() else RecordingAccelerator()
        model, sizes = SHAPES["tiny"], DRY._replace(slots=3)
        config = msgspec.structs.replace(rig_config(model, sizes, torch.float32), max_batched_tokens=MAX_ROWS)
        self.rig = Rig(config, model, torch.float32, self.accelerator)
        self.rig.open(RandomAdapters(model, torch.float32, [3, 2], pin=False))

    def start(self, prompt: list[int], adapter: str = "") -> Sequence:
        return self.rig.start(prompt, 4, adapter=adapter)

    def decoding(self, prompt: list[int], adapter: str = "") -> Sequence:
        """One whose next step is a decode."""
        sequence = self.start(prompt, adapter)
        self.rig.prefill([sequence])
        return sequence

    def logits(self, plan: Plan, rows: list[int]) -> tuple[torch.Tensor, bool]:
        """And whether they come from a graph."""
        before = self.accelerator.num_replays
        logits = self.rig.logits(plan, rows).clone()
        return logits, self.accelerator.num_replays > before


@pytest.fixture(scope="module")
def steps() -> Iterator[Steps]:
    made = Steps()
    yield made
    made.rig.pool.close()


def mixed(decodes: list[Sequence], *chunks: Chunk) -> Plan:
    return Plan(decode_plan(decodes).decodes, list(chunks))


@pytest.mark.parametrize("adapters", [("", "", ""), ("0", "", "1")], ids=["base", "adapters"])
@pytest.mark.parametrize("num_decodes", [0, 1, 2])
def test_a_replayed_step_gives_what_the_launched_one_gives(
    steps: Steps, adapters: tuple[str, str, str], num_decodes: int
) -> None:
    """Launched because more rows are wanted than a graph gives. The first chunk has a cached prefix."""
    decodes = [steps.decoding([1, 2, 3], adapters[0]), steps.decoding([4, 5], adapters[1])][:num_decodes]
    cut = steps.start([6, 7, 8, 9, 10, 11, 12], adapters[2])
    steps.rig.logits(Plan([], [Chunk(cut, 0, 3)]), [0])
    plan = mixed(decodes, Chunk(cut, 3, 4), Chunk(steps.start([13, 14], adapters[0]), 0, 2))
    last_rows = [*range(num_decodes), num_decodes + 3, num_decodes + 5]
    replayed, from_graph = steps.logits(plan, last_rows)
    launched, also_from_graph = steps.logits(plan, last_rows * 4)
    assert from_graph and not also_from_graph
    torch.testing.assert_close(replayed, launched[: len(last_rows)], rtol=1e-4, atol=1e-4)
    steps.rig.end([chunk.sequence for chunk in plan.chunks])


def test_prompts_alone_are_replayed_up_to_the_rows_of_the_largest_graph(steps: Steps) -> None:
    whole = steps.start(list(range(1, MAX_ROWS + 1)))
    assert steps.logits(Plan([], [Chunk(whole, 0, MAX_ROWS)]), [MAX_ROWS - 1])[1]
    steps.rig.end([whole])


def test_within_a_graph_neighbors_change_no_bit_of_decodes_or_chunks(steps: Steps) -> None:
    """Others are more or fewer, longer or shorter, of other adapters; the asked decode is in another row."""
    decode, first, second = steps.decoding([1, 2, 3, 4], "0"), steps.decoding([5], "1"), steps.decoding([6, 7, 8])
    prompt = steps.start([20, 21, 22, 23, 24], "1")
    asked = Chunk(prompt, 0, 5)
    found = []
    for decodes, others in (
        ([decode], []),
        ([decode, second], [Chunk(steps.start([30, 31, 32], "0"), 0, 3)]),
        ([first, decode, second], [Chunk(steps.start([33]), 0, 1), Chunk(steps.start(list(range(6)), "1"), 0, 6)]),
    ):
        place = decodes.index(decode)
        plan = Plan([Chunk(each, each.num_computed, 1) for each in decodes], [asked, *others])
        logits, from_graph = steps.logits(plan, [place, len(decodes) + 4])
        assert from_graph
        found.append(logits)
    assert all(torch.equal(logits, found[0]) for logits in found)
    steps.rig.end([decode, first, second, prompt])
