"""Every decode that may be replayed has a graph of enough rows and context, and not of many more."""

from __future__ import annotations

import pytest
import torch

from engine.cuda.graphs import (
    Bucket,
    Captured,
    DecodeGraphs,
    buckets_for,
    context_buckets,
    row_buckets,
)
from engine.cuda.in_order import InOrderAccelerator, Rerun
from engine.cuda.metadata import StepBuffers, StepShape


def graphs(max_rows: int, max_context: int) -> tuple[DecodeGraphs, list[Bucket]]:
    made: list[Bucket] = []

    def capture(bucket: Bucket) -> Captured:
        made.append(bucket)
        staged = StepBuffers(InOrderAccelerator(), 256).stage(StepShape(1, 1, 1, 0, 0))
        return Captured(bucket, staged, Rerun(lambda: torch.zeros(bucket.num_rows)))

    return DecodeGraphs(buckets_for(max_rows, max_context, has_adapters=True), capture), made


@pytest.mark.parametrize("max_rows", [1, 2, 3, 8, 9, 64, 65, 100, 256, 300, 1000])
def test_padding_is_less_than_the_rows_or_a_quarter_of_them(max_rows: int) -> None:
    buckets = row_buckets(max_rows)
    assert buckets == sorted(set(buckets)) and buckets[-1] == max_rows
    for rows in range(1, max_rows + 1):
        padded = min(bucket for bucket in buckets if bucket >= rows)
        assert padded < 2 * rows
        assert padded - rows < 8 or padded - rows <= rows / 4


@pytest.mark.parametrize(("max_rows", "max_context"), [(1, 100), (9, 4096), (24, 10_000), (24, 1 << 20)])
def test_a_step_gets_the_smallest_graph_that_serves_it(max_rows: int, max_context: int) -> None:
    found, made = graphs(max_rows, max_context)
    assert len(made) == len(set(made)) == 2 * len(row_buckets(max_rows)) * len(context_buckets(max_context))
    for rows in range(1, max_rows + 1):
        for context in {1, max_context // 3, max_context - 1, max_context}:
            for with_adapters in (True, False):
                captured = found.find(rows, context, with_adapters=with_adapters)
                assert captured is not None
                serving = [b for b in made if b.num_rows >= rows and b.max_context >= context]
                smallest = min(b for b in serving if b.with_adapters == with_adapters)
                assert captured.bucket == smallest


def test_beyond_all_graphs_there_is_none() -> None:
    found, _ = graphs(4, 131072)
    assert found.find(4, 131072, with_adapters=True) is not None
    assert found.find(5, 10, with_adapters=False) is None
    assert found.find(1, 131073, with_adapters=True) is None


def test_without_slots_for_adapters_there_are_no_graphs_with_them() -> None:
    assert not any(bucket.with_adapters for bucket in buckets_for(4, 100, has_adapters=False))


def test_the_largest_is_captured_first() -> None:
    _, made = graphs(16, 8192)
    sizes = [bucket.num_rows * bucket.max_context for bucket in made]
    assert made[0].num_rows == 16 and sizes[0] == max(sizes)


def test_a_replay_reads_its_inputs_anew_and_leaves_its_output_in_place() -> None:
    given = torch.ones(2)
    graph = InOrderAccelerator().capture(lambda: given * 3)
    first = graph.replay()
    given.fill_(2)
    second = graph.replay()
    assert second.tolist() == [6, 6] and first.data_ptr() == second.data_ptr()
