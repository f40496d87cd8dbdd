"""The bits of a row's delta depend on the row, its adapter and the kind of chunks alone: neighbors, their order and
their faults change none."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.gpu.activation import silu_mul
from kernels.gpu.lora import Shrink, expand_and_silu_mul, expand_launch, resolve_launch, workspace_elements
from kernels.gpu.work_list import build_work_list
from tests.kernels.gpu.adapters import Adapters, mixed_ranks, slots_of
from tests.kernels.gpu.compare import DEVICE, DTYPES, poisoned, randn

# Two splits of `in`, the second one short; ranks of 0, and on both sides of a block of 16 and of 32.
WIDTH, SIZES, NUM_SLOTS = 1096, (72, 24), 4


# The interpreter, which is slow, computes both widths alike.
CHUNKS = [(block_m, dtype) for dtype in DTYPES for block_m in (2, 16)]
CHUNKS = CHUNKS if DEVICE.type == "cuda" else [(2, torch.float32), (16, torch.float16)]


def batch(num_rows: int, dtype: torch.dtype) -> tuple[Adapters, Tensor, Tensor, Tensor]:
    adapters = Adapters(mixed_ranks(NUM_SLOTS, 2, highest=33), WIDTH, SIZES, dtype)
    x, out = randn(num_rows, WIDTH, dtype=dtype), randn(num_rows, sum(SIZES), dtype=dtype)
    return adapters, x, out, slots_of("uniform", num_rows, NUM_SLOTS)


@pytest.mark.parametrize(("block_m", "dtype"), CHUNKS, ids=str)
@pytest.mark.parametrize("rows", [[0], list(range(22, -1, -1))], ids=len)
def test_some_rows_in_another_order_give_the_same_bits(rows: list[int], block_m: int, dtype: torch.dtype) -> None:
    adapters, x, out, slots = batch(23, dtype)
    together = adapters.add(out, x, slots, block_m)
    assert torch.equal(adapters.add(out[rows], x[rows], slots[rows], block_m), together[rows])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_more_neighbors_and_chunks_of_32_instead_of_16_give_the_same_bits(dtype: torch.dtype) -> None:
    adapters, x, out, slots = batch(40, dtype)
    together = adapters.add(out, x, slots, block_m=32)
    assert torch.equal(adapters.add(out[:7], x[:7], slots[:7], block_m=16), together[:7])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_splits_that_one_program_sums_give_the_same_bits(dtype: torch.dtype) -> None:
    """The inputs are divided into three splits, the last of which is shorter."""
    adapters = Adapters(mixed_ranks(NUM_SLOTS, 1, highest=16), 2104, (24,), dtype)
    x, out, slots = randn(20, 2104, dtype=dtype), randn(20, 24, dtype=dtype), slots_of("uniform", 20, NUM_SLOTS)
    apart, together = (adapters.add(out, x, slots, all_at_once=together) for together in (False, True))
    assert torch.equal(apart, together)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("block_m", [2, 16, 32])
def test_the_activation_after_an_expand_gives_the_bits_of_both_apart(block_m: int, dtype: torch.dtype) -> None:
    """This holds for rows without an adapter, too, and for an adapter on only one of both projections."""
    adapters = Adapters(mixed_ranks(NUM_SLOTS, 2, highest=33), 104, (136, 136), dtype)
    x, gate_up = randn(40, 104, dtype=dtype), randn(40, 272, dtype=dtype)
    slots = slots_of("uniform", 40, NUM_SLOTS)
    assert (slots < 0).any() and 0 in adapters.table.ranks
    before = gate_up.clone()
    ours = expand_and_silu_mul(gate_up, adapters.shrink(x, slots, block_m))
    assert torch.equal(gate_up, before)
    assert torch.equal(ours, silu_mul(adapters.add(gate_up, x, slots, block_m)))


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # by the interpreter
def test_an_adapter_or_a_row_that_overflows_leaves_no_trace_in_others() -> None:
    adapters, x, out, _ = batch(6, torch.float32)
    slots = torch.tensor([0, 1, 2, 0, 1, 2], device=DEVICE)
    alone = adapters.add(out, x, slots)
    of_slot_1 = adapters.weights[1][0]
    assert of_slot_1 is not None
    of_slot_1[0].fill_(torch.inf)
    x[5] = torch.nan
    ours = adapters.add(out, x, slots)
    assert not ours[1, :72].isfinite().any()
    assert not ours[5, 72:].isfinite().any()
    assert torch.equal(ours[[0, 2, 3]], alone[[0, 2, 3]])


def test_grids_depend_on_shapes_alone() -> None:
    """A captured launch is right for any mix of adapters: replayed with other slots, it gives what those slots ask
    for."""
    adapters, x, out, slots = batch(23, torch.float32)
    work = build_work_list(torch.full_like(slots, -1), NUM_SLOTS, 16)
    workspace = poisoned(workspace_elements(23, WIDTH, 2, adapters.max_rank, torch.float32, DEVICE))
    target = out.clone()
    table = adapters.table.of_chunks(work)
    shrink = Shrink.of(x, table.group(0, 0, 2), adapters.max_rank, work, workspace)
    captured = resolve_launch(table, adapters.table, work), shrink.launch(), expand_launch(target, SIZES, shrink)
    for popularity in ("identical", "zipf"):
        slots = slots_of(popularity, 23, NUM_SLOTS)
        fresh = build_work_list(slots, NUM_SLOTS, 16)
        work.rows.copy_(fresh.rows)
        work.chunks.copy_(fresh.chunks)
        target.copy_(out)
        for launch in captured:
            launch.run()
        assert torch.equal(target, adapters.add(out, x, slots))
