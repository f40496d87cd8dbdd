"""A step's integers lie where kernels look for them, and say what the plan says."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from engine.cuda.fill import NO_SLOT, BlockTables, Extent, Filler, extent_of, fill_work, row_slots
from engine.cuda.in_order import InOrderAccelerator
from engine.cuda.metadata import ALIGNMENT, StepBuffers, StepShape, fields_of, num_bytes_of, views
from engine.sequence import Chunk, Plan, Sequence
from kernels.gpu.work_list import max_chunks, work_list_reference
from tests.engine.cuda.plans import decode, sequence

BLOCK_SIZE = 4


@pytest.mark.parametrize(
    "shape", [StepShape(1, 1, 1, 1, 1, 1), StepShape(7, 3, 5, 2, 3, 0), StepShape(64, 64, 9, 36, 0, 64)]
)
def test_fields_are_aligned_and_do_not_overlap(shape: StepShape) -> None:
    buffer = torch.zeros(num_bytes_of(shape), dtype=torch.uint8)
    for view, (dtype, of_field) in zip(views(shape, buffer), fields_of(shape), strict=True):
        assert (view.dtype, view.shape) == (dtype, of_field)
        assert (view.data_ptr() - buffer.data_ptr()) % ALIGNMENT == 0
        assert not view.any()
        view.fill_(-1)
    num_written = sum(dtype.itemsize * int(np.prod(of_field)) for dtype, of_field in fields_of(shape))
    assert int((buffer == 255).sum()) == num_written


def test_what_is_written_on_the_host_is_read_on_the_device_after_one_copy() -> None:
    buffers = StepBuffers(InOrderAccelerator(), 4096)
    staged = buffers.stage(StepShape(3, 2, 4, 1, 5, 2))
    buffers.begin()
    for index, field in enumerate(staged.host):
        field[...] = index
    assert not any(tensor.any() for tensor in staged.device)
    buffers.send(staged)
    assert all((tensor == index).all() for index, tensor in enumerate(staged.device))


def test_decodes_drafts_prefills_and_padding_in_one_batch() -> None:
    """Two rows of padding follow the decodes, three rows and a sequence follow the prompts, one output row is spare."""
    plain = sequence([5, 6, 7, 8, 9, 10], [3, 9], slot=1)
    drafted = sequence([1, 2, 3], [4, 8, 99])
    prompt = sequence([20, 21, 22, 23, 24, 25, 26], [2, 7, 5], num_prompt=7, slot=0)
    short = sequence([30, 31], [6], num_prompt=2)
    plan = Plan([decode(plain), decode(drafted, drafts=(11, 12))], [Chunk.of(short, 0, 1), Chunk.of(prompt, 1, 5)])
    shape = StepShape(num_rows=15, num_sequences=9, num_blocks=3, num_chunks=4, num_tiles=6, num_outputs=5)
    fields = StepBuffers(InOrderAccelerator(), 4096).stage(shape).host
    for field in fields:
        field[...] = -77
    filler = Filler(BLOCK_SIZE, max_rows=8, max_blocks=3, queries_at_once=2)
    filler.fill(plan, fields, [0, 3, 4, 9], num_decode_rows=6)
    assert fields.token_ids.tolist() == [10, 3, 11, 12, 0, 0, 30, 21, 22, 23, 24, 25, 0, 0, 0]
    assert fields.angles.tolist() == [5, 2, 3, 4, 0, 0, 0, 1, 2, 3, 4, 5, 0, 0, 0]
    decode_slots = [9 * 4 + 1, 4 * 4 + 2, 4 * 4 + 3, 8 * 4, NO_SLOT, NO_SLOT]
    prompt_slots = [6 * 4, 2 * 4 + 1, 2 * 4 + 2, 2 * 4 + 3, 7 * 4, 7 * 4 + 1, NO_SLOT, NO_SLOT, NO_SLOT]
    assert fields.slots[0].tolist() == decode_slots + prompt_slots
    assert fields.context_lens.tolist() == [6, 3, 4, 5, 0, 0, 1, 6, 0]
    assert fields.query_starts.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 12, 12]
    assert fields.tiles.tolist() == [[1, 4], [1, 2], [1, 0], [0, 0], [-1, -1], [-1, -1]]
    assert fields.block_tables[0, 0, :2].tolist() == [3, 9]
    assert fields.block_tables[0, 1, :1].tolist() == [4] and fields.block_tables[0, 3, :2].tolist() == [4, 8]
    assert fields.block_tables[0, 6, :1].tolist() == [6] and fields.block_tables[0, 7, :2].tolist() == [2, 7]
    assert fields.output_rows.tolist() == [0, 3, 6, 11, 0]
    assert row_slots(plan, 15, 6).tolist() == [1, *[-1] * 6, *[0] * 5, *[-1] * 3]
    assert extent_of(plan, with_adapters=True) == Extent(6, 4, 2, 6, 6, with_adapters=True)


def test_a_pending_token_is_named_by_its_place_among_the_chosen() -> None:
    """The pending token's row stands beside a row of a known token, whose prompt ended in the step before."""
    first, second, known = sequence([5, 6], [1]), sequence([7, 8, 9], [2]), sequence([3], [3])
    for pending in (first, second):
        pending.num_computed, pending.num_pending = len(pending.token_ids), 1
    plan = Plan([Chunk.of(each, each.num_computed, 1) for each in (first, known, second)], [])
    fields = StepBuffers(InOrderAccelerator(), 4096).stage(StepShape(4, 4, 3, 0, 0, 4)).host
    filler = Filler(BLOCK_SIZE, max_rows=8, max_blocks=3, queries_at_once=2)
    filler.fed = {second: 0, first: 4}
    filler.fill(plan, fields, range(3), num_decode_rows=4)
    assert fields.token_ids.tolist() == [-1 - 4, 3, -1 - 0, 0]
    assert fields.angles.tolist() == [2, 0, 3, 0]
    assert fields.context_lens.tolist() == [3, 1, 4, 0]


def test_a_step_of_padding_alone_reads_and_writes_nothing() -> None:
    shape = StepShape(num_rows=5, num_sequences=4, num_blocks=3, num_chunks=4, num_tiles=2, num_outputs=2)
    fields = StepBuffers(InOrderAccelerator(), 4096).stage(shape).host
    for field in fields:
        field[...] = -77
    Filler(BLOCK_SIZE, max_rows=8, max_blocks=3, queries_at_once=2).fill(Plan([], []), fields, [], num_decode_rows=3)
    assert (fields.slots == NO_SLOT).all() and not fields.context_lens.any() and (fields.tiles == -1).all()
    assert fields.query_starts.tolist() == [0, 1, 2, 3, 3] and not fields.output_rows.any()


@pytest.mark.parametrize("num_tables", [1, 3])
@pytest.mark.parametrize("seed", range(20))
def test_integers_filled_on_from_the_last_step_equal_those_filled_from_the_plan_alone(
    seed: int, num_tables: int
) -> None:
    """Two graphs of one buffer, while sequences go on, grow, come, leave, change places, draft and are preempted."""
    rnd = random.Random(seed)
    shapes = [StepShape(rows, rows, 12, 0, 0, rows, num_tables) for rows in (4, 8)]

    def tables() -> list[list[int]]:
        return [[rnd.randrange(50)] for _ in range(num_tables)]

    def begun(num_tokens: int) -> Sequence:
        made = sequence([rnd.randrange(99) for _ in range(num_tokens)], [])
        made.block_tables = tables()
        return made

    buffers = StepBuffers(InOrderAccelerator(), 1 << 14)
    kept, staged = Filler(BLOCK_SIZE, 8, 12, 2, num_tables=num_tables), [buffers.stage(shape).host for shape in shapes]
    running = [begun(3) for _ in range(3)]
    num_advanced = 0
    for _ in range(120):
        if rnd.random() < 0.1:
            rnd.shuffle(running)
        if rnd.random() < 0.1:
            running[rnd.randrange(len(running))] = begun(1)
        if rnd.random() < 0.1 and len(running) < 6:
            running.append(begun(2))
        elif rnd.random() < 0.1 and len(running) > 1:
            running.pop()
        for each in running:
            each.token_ids += [rnd.randrange(99) for _ in range(1 + each.num_pending)]
            each.num_pending = 0
            if len(each.token_ids) > 40:
                del each.token_ids[2:]
            if rnd.random() < 0.5:  # the host does not know it yet
                del each.token_ids[-1]
                each.num_pending = 1
            if rnd.random() < 0.1:
                each.block_tables = tables()
            for table in each.block_tables:
                while len(table) * BLOCK_SIZE < each.length + 1:
                    table.append(rnd.randrange(50))
        drafts = (7,) if rnd.random() < 0.1 and len(running) < 5 and not running[0].num_pending else ()
        fed = {each: rnd.randrange(9) for each in running}
        kept.fed = fed
        plan = Plan([decode(running[0], drafts), *map(decode, running[1:])], [])
        if rnd.random() < 0.1:
            plan = Plan(plan.decodes[1:], [])
        num_rows = plan.num_tokens
        graph = int(num_rows > 4 or rnd.random() < 0.1)
        num_advanced += kept.fill(plan, staged[graph], range(num_rows), shapes[graph].num_rows)
        alone = StepBuffers(InOrderAccelerator(), 1 << 14).stage(shapes[graph]).host
        anew = Filler(BLOCK_SIZE, 8, 12, 2, num_tables=num_tables)
        anew.fed = fed
        anew.fill(plan, alone, range(num_rows), shapes[graph].num_rows)
        for name in ("token_ids", "angles", "slots", "context_lens", "query_starts", "output_rows"):
            assert getattr(staged[graph], name).tolist() == getattr(alone, name).tolist(), name
        for row, context in enumerate(alone.context_lens):
            num_blocks = -(-int(context) // BLOCK_SIZE)
            ours, theirs = staged[graph].block_tables[:, row], alone.block_tables[:, row]
            assert ours[:, :num_blocks].tolist() == theirs[:, :num_blocks].tolist()
    assert num_advanced > 10


def test_kept_block_tables_equal_those_copied_anew() -> None:
    """Sequences come, grow, are preempted (which replaces their block table) and change rows."""
    rnd = random.Random(1)
    kept = BlockTables(max_rows=6, max_blocks=40)
    tables = [[rnd.randrange(100)] for _ in range(5)]
    for _ in range(300):
        rnd.choice(tables).append(rnd.randrange(100))
        if rnd.random() < 0.3:
            tables[rnd.randrange(5)] = [rnd.randrange(100) for _ in range(rnd.randint(1, 8))]
        if rnd.random() < 0.2:
            rnd.shuffle(tables)
        tables = [table if len(table) < 40 else [7] for table in tables]
        shown = rnd.choices(tables, k=rnd.randint(1, 6))
        found = kept.as_array(shown)
        assert [found[row, : len(table)].tolist() for row, table in enumerate(shown)] == shown


@pytest.mark.parametrize("seed", range(20))
def test_adapters_work_is_the_kernels_own(seed: int) -> None:
    rnd = random.Random(seed)
    num_slots, block_m, num_rows = rnd.randint(1, 9), rnd.choice((2, 16)), rnd.randint(1, 70)
    popular = rnd.sample(range(num_slots), rnd.randint(1, num_slots))
    slots = np.array(rnd.choices([NO_SLOT, *popular], k=num_rows))
    num_chunks = max_chunks(num_rows, num_slots, block_m)
    fields = StepBuffers(InOrderAccelerator(), 1 << 14).stage(StepShape(num_rows, 1, 1, num_chunks, 0, 0)).host
    fill_work(slots, num_slots, block_m, fields)
    expected = work_list_reference(torch.from_numpy(slots), num_slots, block_m)
    assert fields.rows.tolist() == expected.rows.tolist()
    assert fields.chunks.tolist() == expected.chunks.tolist()
