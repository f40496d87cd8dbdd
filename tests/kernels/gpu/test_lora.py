"""Every row gets its own adapter's delta and nothing else: any number of rows, any ranks, any popularity."""

from __future__ import annotations

import pytest
import torch

from kernels.gpu.lora import Shrink
from kernels.gpu.tuning import lora_block_m
from kernels.gpu.work_list import build_work_list
from tests.kernels.gpu.adapters import POPULARITY, Adapters, mixed_ranks, slots_of
from tests.kernels.gpu.compare import DEVICE, DTYPES, assert_near, randn

# The interpreter, which is slow, computes both widths alike, and many rows of any popularity as it does few.
INTERPRETED = {63: ("distinct", "zipf"), 129: ("uniform",), 1000: ("skewed",)}
BATCHES = [
    (rows, popularity, dtype)
    for dtype in DTYPES
    for rows in (1, 7, 63, 129, 1000)
    for popularity in POPULARITY
    if DEVICE.type == "cuda" or rows < 63 or (dtype == torch.float32 and popularity in INTERPRETED[rows])
]
CHUNKS = [(rows, dtype) for dtype in DTYPES for rows in (2, 16, 32)]
CHUNKS = CHUNKS if DEVICE.type == "cuda" else [(2, torch.float32), (16, torch.float32), (32, torch.float16)]
RANKS = [1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 64, 127, 128]
RANKS_AND_WIDTHS = [
    (rank, dtype)
    for rank in RANKS
    for dtype in DTYPES
    if DEVICE.type == "cuda" or dtype == torch.float32 or rank in (1, 16, 33, 127)
]
# in, outs of the group: not multiples of any block, more than one split, one to three projections
SHAPES = [(64, (64,)), (72, (1,)), (104, (24, 8)), (1032, (144, 40, 264)), (2104, (136, 8, 8))]
LARGE_SHAPES = [(4096, (4096, 1024, 1024)), (4096, (14336, 14336)), (14336, (4096,))]


@pytest.mark.parametrize(("num_rows", "popularity", "dtype"), BATCHES, ids=str)
def test_adapters_of_mixed_ranks_equal_the_definition_at_any_popularity(
    num_rows: int, popularity: str, dtype: torch.dtype, full: bool
) -> None:
    is_large = full or DEVICE.type == "cuda"
    highest = 128 if num_rows <= 7 or is_large else 17
    num_rows = num_rows if is_large else min(num_rows, 260)
    adapters = Adapters(mixed_ranks(11, 3, highest), 96, (48, 32, 16), dtype)
    x, out = randn(num_rows, 96, dtype=dtype), randn(num_rows, 96, dtype=dtype)
    slots = slots_of(popularity, num_rows, 11)
    assert_near(adapters.add(out, x, slots, lora_block_m(num_rows)), adapters.expected(out, x, slots))


@pytest.mark.parametrize(("rank", "dtype"), RANKS_AND_WIDTHS, ids=str)
def test_adapters_of_every_rank_equal_the_definition(rank: int, dtype: torch.dtype) -> None:
    adapters = Adapters([[rank, rank]], 80, (40, 72), dtype)
    x, out = randn(19, 80, dtype=dtype), randn(19, 112, dtype=dtype)
    slots = torch.zeros(19, dtype=torch.int64, device=DEVICE)
    assert_near(adapters.add(out, x, slots), adapters.expected(out, x, slots))


@pytest.mark.parametrize(("block_m", "dtype"), CHUNKS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_adapters_of_every_shape_equal_the_definition(
    shape: tuple[int, tuple[int, ...]], block_m: int, dtype: torch.dtype
) -> None:
    in_features, sizes = shape
    adapters = Adapters(mixed_ranks(4, len(sizes), highest=16), in_features, sizes, dtype)
    num_rows = 20 if block_m > 2 or DEVICE.type == "cuda" else 7
    x, out = randn(num_rows, in_features, dtype=dtype), randn(num_rows, sum(sizes), dtype=dtype)
    slots = slots_of("uniform", num_rows, 4)
    assert_near(adapters.add(out, x, slots, block_m), adapters.expected(out, x, slots))


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a GPU")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rank", [16, 64])
@pytest.mark.parametrize("num_rows", [1, 32, 1000])
@pytest.mark.parametrize("shape", LARGE_SHAPES, ids=str)
def test_adapters_equal_the_definition_at_the_targets_shapes(
    shape: tuple[int, tuple[int, ...]], num_rows: int, rank: int, dtype: torch.dtype
) -> None:
    in_features, sizes = shape
    adapters = Adapters([[rank] * len(sizes)] * 32, in_features, sizes, dtype)
    x, out = randn(num_rows, in_features, dtype=dtype), randn(num_rows, sum(sizes), dtype=dtype)
    slots = slots_of("distinct", num_rows, 32)
    block_m = lora_block_m(num_rows)
    assert_near(adapters.add(out, x, slots, block_m), adapters.expected(out, x, slots))


def test_rows_that_are_strided_views_get_their_deltas() -> None:
    adapters = Adapters(mixed_ranks(3, 2), 64, (32, 48), torch.float32)
    x, out = randn(9, 70)[:, :64], randn(9, 100)
    slots = slots_of("uniform", 9, 3)
    ours = adapters.add(out, x, slots)
    assert_near(ours[:, :80], adapters.expected(out[:, :80], x, slots))
    assert torch.equal(ours[:, 80:], out[:, 80:])


def test_rows_without_an_adapter_and_rank_0_are_left_as_they_are() -> None:
    """Rows without an adapter are not touched, even where x and the output are NaN."""
    adapters = Adapters([[0, 4]], 64, (32, 48), torch.float32)
    x, out = randn(5, 64), randn(5, 80)
    x[1], out[1, 3], out[2, 5] = torch.nan, torch.nan, torch.inf
    slots = torch.tensor([0, -1, -1, 0, -1], device=DEVICE)
    ours = adapters.add(out, x, slots)
    assert torch.equal(ours.nan_to_num()[[1, 2, 4]], out.nan_to_num()[[1, 2, 4]])
    assert torch.equal(ours[:, :32].nan_to_num(), out[:, :32].nan_to_num())
    assert not torch.equal(ours[[0, 3], 32:], out[[0, 3], 32:])


def test_batches_without_rows_or_adapters_change_nothing() -> None:
    adapters = Adapters([[4]], 64, (32,), torch.float32)
    none = torch.full((3,), -1, device=DEVICE)
    out = randn(3, 32)
    assert torch.equal(adapters.add(out, randn(3, 64), none), out)
    assert adapters.add(out[:0], randn(0, 64), none[:0]).shape == (0, 32)


def test_a_workspace_that_is_too_small_is_refused() -> None:
    adapters = Adapters([[4]], 64, (32,), torch.float32)
    work = build_work_list(torch.zeros(3, dtype=torch.int64, device=DEVICE), 1, 16)
    with pytest.raises(ValueError, match="workspace: 12 elements of float32 are needed, not 11"):
        Shrink.of(randn(3, 64), adapters.chunk_table(work), 4, work, randn(11))
