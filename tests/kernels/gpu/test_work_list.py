"""A work list holds every row that has an adapter exactly once, in chunks of its slot, whatever the batch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.gpu.work_list import build_work_list, max_chunks, work_list_reference
from tests.kernels.gpu.adapters import POPULARITY, slots_of


def assert_equals_its_definition(slots: torch.Tensor, num_slots: int, block_m: int) -> None:
    ours, theirs = build_work_list(slots, num_slots, block_m), work_list_reference(slots, num_slots, block_m)
    assert torch.equal(ours.rows, theirs.rows)
    assert torch.equal(ours.chunks, theirs.chunks)


@pytest.mark.parametrize("popularity", POPULARITY)
@pytest.mark.parametrize("num_rows", [1, 7, 63, 129, 1000])
def test_a_work_list_equals_its_definition(num_rows: int, popularity: str) -> None:
    assert_equals_its_definition(slots_of(popularity, num_rows, 11), 11, 16)


@given(slots=st.lists(st.integers(-1, 6), max_size=80), block_m=st.sampled_from((1, 2, 16)), data=st.data())
@settings(max_examples=100, deadline=None, derandomize=True)
def test_any_batch_fits_into_the_chunks_there_are(slots: list[int], block_m: int, data: st.DataObject) -> None:
    num_slots = data.draw(st.integers(max(slots, default=0) + 1, 9))
    dtype = data.draw(st.sampled_from((torch.int32, torch.int64)))
    work = build_work_list(torch.tensor(slots, dtype=dtype), num_slots, block_m)
    assert len(work.chunks) == max_chunks(len(slots), num_slots, block_m)
    rows = work.rows.tolist()
    placed = [(slot, rows[i]) for slot, first, count in work.chunks.tolist() for i in range(first, first + count)]
    assert sorted(row for _, row in placed) == list(range(len(slots)))
    assert all(slots[row] == slot for slot, row in placed)
    assert sorted(rows) == list(range(len(slots)))
