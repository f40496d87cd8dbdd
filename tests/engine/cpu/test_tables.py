"""Decode rows get their own adapter's delta while the set of adapters changes at every step."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from engine.cpu.lora import Segment
from engine.cpu.tables import AdapterTable, AdapterTables
from engine.lora.layer import DOWN, GATE_UP, OUT, QKV, AdapterLayout, LoadedAdapter
from kernels.lora import lora_reference

TARGETS = {
    "q_proj": (12, 16),
    "k_proj": (12, 8),
    "v_proj": (12, 8),
    "o_proj": (16, 12),
    "gate_proj": (12, 20),
    "up_proj": (12, 20),
    "down_proj": (20, 12),
}
NUM_LAYERS = 2
EVERYWHERE = AdapterLayout({(layer, name): 4 for layer in range(NUM_LAYERS) for name in TARGETS}, TARGETS)
HERE_AND_THERE = AdapterLayout({(1, "k_proj"): 3, (1, "v_proj"): 7, (0, "down_proj"): 1}, TARGETS)


def adapter(name: str, layout: AdapterLayout, scalings: Sequence[float] = (2.0,)) -> LoadedAdapter:
    weights = torch.randn(layout.num_elements, generator=torch.Generator().manual_seed(sum(name.encode()))) / 5
    groups = layout.groups_of(weights)
    scaling = {key: tuple(scalings[p % len(scalings)] for p in g.projections) for key, g in groups.items()}
    return LoadedAdapter(name, scaling, weights.nbytes, layout, weights, groups)


ADAPTERS = [
    *(adapter(f"everywhere {i}", EVERYWHERE) for i in range(8)),
    *(adapter(f"here and there {i}", HERE_AND_THERE, (0.5, 1.0, 3.0)) for i in range(3)),
]


def segments(rows: Sequence[LoadedAdapter | None]) -> list[Segment]:
    """Return the segments of these rows: consecutive rows with the same adapter are one segment.

    rows: the adapter of each row; None: the base.
    """
    found: list[Segment] = []
    for i, used in enumerate(rows):
        if found and found[-1].last == i and found[-1].adapter is used:
            found[-1] = Segment(used, found[-1].first, i + 1)
        elif used is not None:
            found.append(Segment(used, i, i + 1))
    return found


def assert_right(
    tables: AdapterTables, rows: Sequence[LoadedAdapter | None], dtype: torch.dtype = torch.float32
) -> None:
    """Check that each row's delta is its own adapter's, within eight units in the last place.

    rows: the adapter of each row; None: the base. dtype: the dtype of the products.
    """
    tolerance = max(8 * torch.finfo(dtype).eps, 1e-5)
    step = tables.step(segments(rows))
    assert step is not None
    for layer in range(NUM_LAYERS):
        for group in (QKV, OUT, GATE_UP, DOWN):
            sizes = [TARGETS[name][1] for name in group]
            x = torch.randn(len(rows), TARGETS[group[0]][0], dtype=dtype)
            out = torch.randn(len(x), sum(sizes), dtype=dtype)
            expected = out.float()
            for s in segments(rows):
                add_reference_(
                    expected[s.first : s.last].split(sizes, 1), x[s.first : s.last], s.adapter, (layer, group)
                )
            step.begin(layer, group, x).add_(out, sizes)
            torch.testing.assert_close(out.float(), expected, atol=tolerance, rtol=tolerance)


def add_reference_(outs: Sequence[Tensor], x: Tensor, used: LoadedAdapter, key: tuple[int, tuple[str, ...]]) -> None:
    if key not in used.groups:
        return
    weights = used.groups[key]
    shrinks = weights.a.split([len(b) for b in weights.bs])
    for p, a, b, scaling in zip(weights.projections, shrinks, weights.bs, used.scalings[key], strict=True):
        outs[p].add_(lora_reference(x, a, b.T, scaling))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_each_row_gets_its_adapters_delta_while_adapters_come_and_go(seed: int, dtype: torch.dtype) -> None:
    rnd = random.Random(seed)
    tables = AdapterTables(max_adapters=8, dtype=dtype, max_bytes=1 << 20)
    for _ in range(25):
        if rnd.random() < 0.3:
            tables.expect(rnd.choice((EVERYWHERE, HERE_AND_THERE)))
        popular = rnd.sample(ADAPTERS, rnd.randint(1, 8))
        decodes = rnd.choices(popular, [1 / (i + 1) ** 2 for i in range(len(popular))], k=rnd.randint(1, 24))
        prefills = [used for used in rnd.choices([*popular, None], k=3) for _ in range(rnd.choice((0, 5, 128)))]
        came: list[LoadedAdapter | None] = [*decodes, *[None] * rnd.choice((0, 3))]
        if prefills:
            assert_right(tables, [*came, *prefills], dtype)
        for _ in range(rnd.randint(1, 3)):
            assert_right(tables, [came[place] for place in tables.order(came)], dtype)


def test_rows_in_their_tables_order_are_computed_where_they_lie() -> None:
    """No row is gathered or padded when each adapter has the same number of rows, in whatever order they came."""
    tables = AdapterTables(max_adapters=8, dtype=torch.float32, max_bytes=1 << 20)
    base = None
    came = [ADAPTERS[2], base, ADAPTERS[0], ADAPTERS[1], ADAPTERS[0], ADAPTERS[1], base, ADAPTERS[2]]
    rows = [came[place] for place in tables.order(came)]
    step = tables.step(segments(rows))
    assert step is not None
    (batch,) = step.batches
    (span,) = batch.spans
    assert (span.first, span.last, span.take, batch.places, batch.rows) == (0, 3, None, None, None)
    assert rows[6:] == [base, base]
    assert tables.step(segments(rows)) is step
    assert_right(tables, rows)


def test_a_16_bit_engine_has_a_table_for_few_rows_and_one_for_many() -> None:
    tables = AdapterTables(max_adapters=8, dtype=torch.bfloat16, max_bytes=1 << 20)
    step = tables.step([Segment(ADAPTERS[0], 0, 1), Segment(ADAPTERS[1], 1, 2), Segment(ADAPTERS[0], 2, 66)])
    assert step is not None
    assert [batch.dtype for batch in step.batches] == [torch.float32, torch.bfloat16]
    assert all(span.take is None for batch in step.batches for span in batch.spans)


def test_holes_are_closed_a_row_at_a_time() -> None:
    """When most adapters have left, the others end up next to each other."""
    table = AdapterTable(EVERYWHERE, 8, torch.float32)
    table.place(ADAPTERS[:8], compact=True)
    staying = [ADAPTERS[3], ADAPTERS[7]]
    assert [table.place(staying, compact=True) for _ in range(3)] == [False, False, True]
    assert {table.row(used) for used in staying} == {0, 1}


def test_a_row_that_is_being_touched_is_no_hole() -> None:
    table = AdapterTable(EVERYWHERE, 8, torch.float32)
    table._claimed = 1  # by the loading thread, which is not there yet
    assert table.place(ADAPTERS[:1], compact=True)
    assert table.row(ADAPTERS[0]) == 1


def test_a_step_that_fails_leaves_tables_that_the_next_step_can_use() -> None:
    tables = AdapterTables(max_adapters=1, dtype=torch.float32, max_bytes=1 << 20)
    assert_right(tables, [ADAPTERS[0]])
    with pytest.raises(IndexError, match="full"):
        tables.step(segments([ADAPTERS[1], ADAPTERS[2]]))
    assert_right(tables, [ADAPTERS[0]])


def test_tables_that_nobody_uses_are_dropped_and_come_back() -> None:
    """Dropped tables come back, also where steps run in inference mode and loads do not."""
    row_bytes = 4 * (12 + 16) * 8
    tables = AdapterTables(max_adapters=2, dtype=torch.float32, max_bytes=4 * row_bytes)
    layouts = [AdapterLayout({(0, "q_proj"): rank}, TARGETS) for rank in range(1, 9)]
    for i, layout in enumerate([*layouts, *layouts]):
        with torch.inference_mode():
            assert_right(tables, [adapter(f"{i} {j}", layout) for j in range(2)])
        tables.expect(layouts[i % 3])
    assert tables.num_bytes <= 5 * row_bytes


def test_a_table_has_room_for_what_the_slots_can_hold() -> None:
    layout = AdapterLayout({(0, "q_proj"): 8}, TARGETS)
    tables = AdapterTables(max_adapters=32, dtype=torch.float32, max_bytes=3 * 4 * layout.num_elements)
    for _ in range(8):
        tables.expect(layout)
    assert tables.num_bytes == 3 * 4 * layout.num_elements
