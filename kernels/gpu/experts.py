"""Products of experts (Shazeer et al., 2017) on a GPU: rows sorted by expert, each with its expert's matrix.

Semantics, as in `kernels.experts`:
    grouped(x)[m] = weight[expert of m] @ x[m] + bias[expert of m]          in fp32, rounded once

Rows are cut into chunks of at most block_m rows of one expert (`kernels.gpu.work_list`), by a list that is made on the
device: the host waits for nothing, and a graph can be captured. Programs of chunks beyond the last one end at once. A
sum goes through `in` in steps of a fixed size, so the bits of a row are those of the row and its expert, and of
block_m, which follows from the batch's number of rows.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import experts
from kernels.experts import ExpertRows
from kernels.gpu.launch import Arguments, Launch, blocks_of, dot_precision
from kernels.gpu.tuning import GroupedBlocks, expert_block_m, grouped_blocks
from kernels.gpu.work_list import chunks_of, max_chunks


@triton.jit(do_not_specialize_on_alignment=["chunks"])
def _grouped_kernel(
    out, x, weight, bias, chunks,
    num_inputs, num_outputs,
    HAS_BIAS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute BLOCK_N columns of one chunk's product."""
    chunk = chunks + tl.program_id(0) * 3
    expert = tl.load(chunk).to(tl.int64)
    first = tl.load(chunk + 1).to(tl.int64)
    count = tl.load(chunk + 2)
    if count == 0:
        return
    m = tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    rows = first + m
    inside = (m < count)[:, None]
    is_column = (n < num_outputs)[None, :]
    x_block = x + rows[:, None] * num_inputs + k[None, :]
    w_block = weight + (expert * num_outputs + n)[None, :] * num_inputs + k[:, None]
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for step in range(tl.cdiv(num_inputs, BLOCK_K)):
        rest = num_inputs - step * BLOCK_K
        inputs = tl.load(x_block, mask=inside & (k < rest)[None, :], other=0.0)
        weights = tl.load(w_block, mask=is_column & (k < rest)[:, None], other=0.0)
        total = tl.dot(inputs, weights, total, input_precision=PRECISION)
        x_block += BLOCK_K
        w_block += BLOCK_K
    if HAS_BIAS:
        added = tl.load(bias + expert * num_outputs + n, mask=n < num_outputs, other=0.0)
        total += added.to(tl.float32)[None, :]
    result = total.to(out.dtype.element_ty)
    tl.store(out + rows[:, None] * num_outputs + n[None, :], result, mask=inside & is_column)


def grouped_launch(
    out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, chunks: Tensor, blocks: GroupedBlocks | None = None
) -> Launch:
    """Return the launch of a grouped product.

    out [M, out], x [M, in], weight [E, out, in], bias [E, out], all contiguous and of one dtype; chunks [C, 3] int32:
    (expert, first row, number of rows). blocks: sizes of blocks other than the device's.
    """
    num_experts, num_outputs, num_inputs = weight.shape
    block_m = expert_block_m(len(x), num_experts)
    blocks = blocks or grouped_blocks(num_inputs, block_m, x.dtype, x.device)
    arguments: Arguments = {
        "out": out,
        "x": x,
        "weight": weight,
        "bias": bias,
        "chunks": chunks,
        "num_inputs": num_inputs,
        "num_outputs": num_outputs,
        "HAS_BIAS": bias is not None,
        "BLOCK_M": block_m,
        "BLOCK_N": blocks.block_n,
        "BLOCK_K": blocks.block_k,
        "PRECISION": dot_precision(x.dtype),
    }
    grid = len(chunks), blocks_of(num_outputs, blocks.block_n)
    return Launch(_grouped_kernel, grid, arguments, blocks.num_warps, blocks.num_stages)


def num_expert_chunks(num_rows: int, num_experts: int) -> int:
    """Return the most chunks that num_rows rows of num_experts experts can make."""
    return max_chunks(num_rows, num_experts, expert_block_m(num_rows, num_experts))


def sorted_rows(chosen: Tensor, num_experts: int) -> ExpertRows:
    """Return the rows of the chosen experts [N, K] with their chunks. Waits for no device."""
    rows = experts.sorted_rows(chosen, num_experts)
    num_rows = len(rows.tokens)
    chunks = chunks_of(rows.counts, num_rows, expert_block_m(num_rows, num_experts))
    return rows._replace(chunks=chunks)


class TritonGrouped:
    """Products with the matrices of all experts: weight [E, out, in], bias [E, out] or None, contiguous."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._weight, self._bias = weight, bias

    def __call__(self, x: Tensor, rows: ExpertRows) -> Tensor:
        """Multiply each row of x [M, in], contiguous, by its expert's matrix. rows: as `sorted_rows` returned them."""
        assert rows.chunks is not None
        out = torch.empty(len(x), self._weight.shape[1], dtype=x.dtype, device=x.device)
        grouped_launch(out, x, self._weight, self._bias, rows.chunks).run()
        return out
