"""Sizes of blocks are legal for every target, sums do not depend on a batch, and any size gives the right result."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from kernels.activation import silu_mul_reference
from kernels.bench.questions import questions
from kernels.bench.shapes import tiny
from kernels.gpu.lora import activate_launch, expand_launch
from kernels.gpu.tuning import (
    TABLE,
    DecodeBlocks,
    ExpandBlocks,
    PrefillBlocks,
    ShrinkBlocks,
    ShrinkSums,
    activate_blocks,
    decode_blocks,
    expand_blocks,
    prefill_blocks,
    shrink_blocks,
    shrink_sums,
)
from tests.kernels.gpu.adapters import Adapters, mixed_ranks, slots_of
from tests.kernels.gpu.compare import DEVICE, DTYPES, assert_near, poisoned, randn
from tests.patience import PATIENCE_S

FIELDS = {
    "shrink in": {*ShrinkSums._fields, *ShrinkBlocks._fields},
    "expand out": set(ExpandBlocks._fields),
    "activate out": set(ExpandBlocks._fields),
    "decode head": set(DecodeBlocks._fields),
    "prefill head": set(PrefillBlocks._fields),
}


def test_the_table_names_kernels_and_fields_that_exist() -> None:
    for device, entries in json.loads(TABLE.read_text()).items():
        assert device.startswith("sm_")
        for key, sizes in entries.items():
            assert set(sizes) <= FIELDS[key.split("=")[0]], key
            assert all(isinstance(size, int) and size > 0 for size in sizes.values()), key


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_sizes_are_powers_of_two_that_fit_each_other(dtype: torch.dtype) -> None:
    sums = shrink_sums(4096, dtype, DEVICE)
    assert sums.split_length % sums.block_k == 0
    sizes = [*sums]
    for block_m in (2, 16, 32):
        sizes += [shrink_blocks(4096, block_m, dtype, DEVICE).block_r]
        sizes += [
            expand_blocks(6144, block_m, dtype, DEVICE).block_n,
            activate_blocks(96, block_m, dtype, DEVICE).block_n,
        ]
    for head_dim in (64, 80, 128, 256):
        decode, prefill = decode_blocks(head_dim, 4, dtype, DEVICE), prefill_blocks(head_dim, 4, dtype, DEVICE)
        assert decode.split_length % decode.block_n == 0
        sizes += [*decode[:3], *prefill[:3]]
    assert all(size & (size - 1) == 0 for size in sizes)


def test_what_was_measured_in_one_dtype_is_not_used_for_another() -> None:
    shape = tiny(DEVICE)
    dtypes = (torch.bfloat16, torch.float16, torch.float32)
    keys = [question.key for dtype in dtypes for question in questions(shape._replace(dtype=dtype))]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize("dtype", DTYPES if DEVICE.type == "cuda" else [torch.float32], ids=str)
@pytest.mark.parametrize(("block_m", "tiles"), [(2, 1), (16, 1), (16, 3), (32, 1), (32, 3)])
@pytest.mark.parametrize("block_n", [64, 128, 256])
def test_any_number_of_columns_at_a_time_is_right(block_n: int, block_m: int, tiles: int, dtype: torch.dtype) -> None:
    """128 columns at a time have given NaN on sm_90 elsewhere."""
    adapters = Adapters(mixed_ranks(3, 2, highest=33), 64, (200, 200), dtype)
    x, out = randn(40, 64, dtype=dtype), randn(40, 400, dtype=dtype)
    slots = slots_of("uniform", 40, 3)
    expected = adapters.expected(out, x, slots)
    shrink = adapters.shrink(x, slots, block_m)
    blocks = expand_blocks(400, block_m, dtype, DEVICE)._replace(block_n=block_n, tiles=tiles)
    activated = poisoned(40, 200, dtype=dtype)
    activate_launch(activated, out, shrink, blocks).run()
    expand_launch(out, (200, 200), shrink, blocks).run()
    assert_near(out, expected)
    assert_near(activated, silu_mul_reference(expected))


@pytest.mark.skipif(DEVICE.type == "cuda", reason="what runs where there is no GPU")
def test_tuning_runs_without_a_gpu_and_then_chooses_nothing() -> None:
    before = TABLE.read_text()
    command = [sys.executable, "-m", "tests.interpreter", "kernels.tune", "--dry"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    for key in ("shrink in=64", "expand out=", "decode head=16", "prefill head=16"):
        assert key in done.stdout
    assert TABLE.read_text() == before
