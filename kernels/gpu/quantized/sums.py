"""The end of a product with a quantized matrix: its splits added, bias and residual with them, rounded once.

Semantics, splits s:
    out[n, o] = sum_s partials[s, n, o] + bias[o] (+ out[n, o])        in the order of s, in fp32

A product of few rows has too few programs for a large GPU unless its inputs are split among several. Their number comes
from the matrix alone, so the bits of a row do not depend on its neighbours. Above MOST_SPLIT_ROWS rows there is one.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.launch import Arguments, Launch, blocks_of

MOST_SPLIT_ROWS = 128
PROGRAMS = 264
"""Programs of a launch that keep the memory of a large GPU busy: two for each multiprocessor of an H100."""
LEAST_STEPS = 4
"""The fewest steps of inputs in a split: with fewer, adding up the splits costs more than the parallelism saves."""
BLOCK = 1024


@triton.jit
def finish(
    out,
    partials,
    bias,
    sums,
    row,
    o,
    split,
    num_rows,
    num_outputs,
    out_stride,
    BIAS: tl.constexpr,
    ADD: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """Store the sums [o, rows] of a tile: to out where inputs are not split, else to the split's part of partials.

    partials [SPLITS, num_rows, num_outputs] fp32.
    """
    inside = (o < num_outputs)[:, None] & (row < num_rows)
    wide = row.to(tl.int64)
    if SPLITS > 1:
        place = (split.to(tl.int64) * num_rows + wide) * num_outputs + o[:, None]
        tl.store(partials + place, sums, mask=inside)
    else:
        place = wide * out_stride + o[:, None]
        if BIAS:
            sums += tl.load(bias + o, mask=o < num_outputs, other=0.0).to(tl.float32)[:, None]
        if ADD:
            sums += tl.load(out + place, mask=inside, other=0.0).to(tl.float32)
        tl.store(out + place, sums.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["num_rows"])
def _sum_kernel(
    out,
    partials,
    bias,
    num_rows,
    num_outputs,
    out_stride,
    BIAS: tl.constexpr,
    ADD: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Add the splits of BLOCK outputs of one row."""
    row = tl.program_id(0).to(tl.int64)
    o = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = o < num_outputs
    sums = tl.zeros((BLOCK,), tl.float32)
    for split in range(SPLITS):
        sums += tl.load(partials + (split * num_rows + row) * num_outputs + o, mask=inside, other=0.0)
    if BIAS:
        sums += tl.load(bias + o, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        sums += tl.load(out + row * out_stride + o, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * out_stride + o, sums.to(out.dtype.element_ty), mask=inside)


def num_splits(num_rows: int, num_outputs: int, num_steps: int, block_outputs: int) -> int:
    """Return the number of parts that the steps of a product's inputs are split into."""
    if num_rows > MOST_SPLIT_ROWS:
        return 1
    programs = blocks_of(num_outputs, block_outputs)
    return max(1, min(blocks_of(PROGRAMS, programs), num_steps // LEAST_STEPS))


def sum_launch(out: Tensor, partials: Tensor, bias: Tensor | None, *, add: bool) -> Launch:
    """Return the launch that adds partials [S, N, O] fp32 to a result. out [N, O], rows of any stride.

    bias: [O]; None without one. add: True: the sum is added to out; False: it replaces what is there.
    """
    num_splits, num_rows, num_outputs = partials.shape
    arguments: Arguments = {
        "out": out,
        "partials": partials,
        "bias": bias,
        "num_rows": num_rows,
        "num_outputs": num_outputs,
        "out_stride": out.stride(0),
        "BIAS": bias is not None,
        "ADD": add,
        "SPLITS": num_splits,
        "BLOCK": BLOCK,
    }
    return Launch(_sum_kernel, (num_rows, blocks_of(num_outputs, BLOCK)), arguments)


def partials_of(splits: int, num_rows: int, num_outputs: int, device: torch.device) -> Tensor | None:
    """Return memory for the sums of splits; None where there is one."""
    return torch.empty(splits, num_rows, num_outputs, dtype=torch.float32, device=device) if splits > 1 else None
