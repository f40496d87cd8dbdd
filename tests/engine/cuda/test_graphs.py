"""Every step that may be replayed has a graph that is large enough in everything, and not much larger."""

from __future__ import annotations

import random

import pytest
import torch

from engine.cuda.fill import Extent
from engine.cuda.graphs import (
    CapturedGraph,
    StepGraphs,
    StepLimits,
    beside_buckets,
    context_buckets,
    extents_for,
    prompt_buckets,
    row_buckets,
)
from engine.cuda.in_order import InOrderAccelerator, RerunGraph
from engine.cuda.metadata import StepBuffers, StepShape


def limits_of(max_decodes: int, max_context: int, max_rows: int = 4096) -> StepLimits:
    return StepLimits(max_rows, max_decodes, max_decodes, 2 * max_decodes, max_context)


def graphs(limits: StepLimits) -> tuple[StepGraphs, list[Extent]]:
    made: list[Extent] = []

    def capture(extent: Extent) -> CapturedGraph:
        made.append(extent)
        staged = StepBuffers(InOrderAccelerator(), 256).stage(StepShape(1, 1, 1, 0, 0, 0))
        return CapturedGraph(extent, staged, RerunGraph(lambda: torch.zeros(extent.num_rows)))

    return StepGraphs(extents_for(limits, has_adapters=True), capture), made


@pytest.mark.parametrize("max_rows", [1, 2, 3, 8, 9, 64, 65, 100, 256, 300, 1000])
def test_padding_is_less_than_the_rows_or_a_quarter_of_them(max_rows: int) -> None:
    buckets = row_buckets(max_rows)
    assert buckets == sorted(set(buckets)) and buckets[-1] == max_rows
    for rows in range(1, max_rows + 1):
        padded = min(bucket for bucket in buckets if bucket >= rows)
        assert padded < 2 * rows
        assert padded - rows < 8 or padded - rows <= rows / 4


@pytest.mark.parametrize("max_rows", [1, 16, 64, 100, 2048, 8192])
def test_padding_of_prompts_is_little_work_or_less_than_theirs(max_rows: int) -> None:
    buckets = prompt_buckets(max_rows)
    assert buckets == sorted(set(buckets)) and buckets[-1] == min(max_rows, 2048)
    for rows in range(1, buckets[-1] + 1):
        padded = min(bucket for bucket in buckets if bucket >= rows)
        assert padded <= 64 or padded < 2 * rows
        assert rows <= 256 or (padded <= 1.5 * rows and padded - rows < 256)


@pytest.mark.parametrize("max_rows", [1, 63, 64, 100, 128, 320, 1024, 3000])
def test_decodes_beside_prompts_have_few_buckets_up_to_all_rows(max_rows: int) -> None:
    buckets = beside_buckets(max_rows)
    assert buckets == sorted(set(buckets)) and buckets[-1] == max_rows and len(buckets) <= 4


@pytest.mark.parametrize(("max_rows", "max_context"), [(1, 100), (9, 4096), (24, 10_000), (24, 1 << 20)])
def test_decodes_get_the_smallest_graph_that_serves_them(max_rows: int, max_context: int) -> None:
    found, made = graphs(limits_of(max_rows, max_context))
    decodes = [extent for extent in made if not extent.num_prompt_rows]
    assert len(decodes) == len(set(decodes)) == 2 * len(row_buckets(max_rows)) * len(context_buckets(max_context))
    for rows in range(1, max_rows + 1):
        for context in {1, max_context // 3, max_context - 1, max_context}:
            for with_adapters in (True, False):
                asked = Extent(0, rows, 0, context, 0, with_adapters)
                captured = found.find(asked, rows)
                assert captured is not None
                assert captured.extent == min(extent for extent in decodes if extent.holds(asked))


@pytest.mark.parametrize(
    ("max_decodes", "max_context", "max_rows"), [(3, 96, 16), (64, 131072, 8192), (320, 600, 2048)]
)
def test_prompts_beside_decodes_get_the_smallest_graph_that_serves_them(
    max_decodes: int, max_context: int, max_rows: int
) -> None:
    found, made = graphs(limits_of(max_decodes, max_context, max_rows))
    mixed = [extent for extent in made if extent.num_prompt_rows]
    contexts = {max_context, min(max_context, 4096)}
    buckets = prompt_buckets(max_rows), beside_buckets(max_decodes)
    assert len(mixed) == len(set(mixed)) == 2 * len(contexts) * len(buckets[0]) * len(buckets[1])
    rnd = random.Random(1)
    for _ in range(300):
        prompts, decodes = rnd.randint(1, min(max_rows, 2048)), rnd.randint(0, max_decodes)
        prefills = rnd.randint(1, min(prompts, max_decodes))
        longest = (rnd.randint(1, max_context) if decodes else 0), rnd.randint(1, max_context)
        asked = Extent(prompts, decodes, prefills, *longest, rnd.random() < 0.5)
        captured = found.find(asked, decodes + prefills)
        assert captured is not None and captured.extent.holds(asked)
        assert captured.extent == min(extent for extent in mixed if extent.holds(asked))
        assert captured.extent.num_prompt_rows == min(rows for rows in buckets[0] if rows >= prompts)


def test_a_step_larger_than_every_graph_has_no_graph() -> None:
    found, _ = graphs(limits_of(4, 131072))
    assert found.find(Extent(0, 4, 0, 131072, 0, True), 4) is not None
    assert found.find(Extent(0, 5, 0, 10, 0), 5) is None
    assert found.find(Extent(0, 1, 0, 131073, 0, True), 1) is None
    assert found.find(Extent(2048, 4, 4, 131072, 131072, True), 8) is not None
    assert found.find(Extent(2049, 4, 4, 10, 10), 8) is None
    assert found.find(Extent(5, 0, 1, 0, 131073), 1) is None
    assert found.find(Extent(5, 0, 5, 0, 9), 1) is None


def test_where_more_rows_are_wanted_than_a_graph_has_sequences_there_is_none() -> None:
    found, _ = graphs(limits_of(4, 100))
    assert found.find(Extent(50, 2, 1, 10, 50), 8) is not None
    assert found.find(Extent(50, 2, 1, 10, 50), 9) is None


def test_without_slots_for_adapters_there_are_no_graphs_with_them() -> None:
    assert not any(extent.with_adapters for extent in extents_for(limits_of(4, 100), has_adapters=False))


@pytest.mark.parametrize(("max_decodes", "max_context"), [(16, 8192), (320, 131072)])
def test_the_first_that_is_captured_is_the_largest_in_everything(max_decodes: int, max_context: int) -> None:
    _, (first, *others) = graphs(limits_of(max_decodes, max_context))
    for other in others:
        assert first.holds(other._replace(with_adapters=True)), other


def test_a_replay_reads_its_inputs_anew_and_leaves_its_output_in_place() -> None:
    given = torch.ones(2)
    graph = InOrderAccelerator().capture(lambda: given * 3)
    first = graph.replay(lambda: None)
    given.fill_(2)
    second = graph.replay(lambda: None)
    assert second.tolist() == [6, 6] and first.data_ptr() == second.data_ptr()
