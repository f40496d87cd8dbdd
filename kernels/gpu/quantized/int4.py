"""Products with a matrix of 4-bit integers on a GPU; inputs are multiplied as they are.

Semantics, with groups g of inputs:
    out[n, o] = sum_g scales[g, o] * sum_{i in g} x[n, order[i]] * (integers[o, i] - zeros[g, o])  + bias[o]
    add: out[n, o] += the same
The inner sums are of products that are exact: integers less their zero point are numbers of any 16-bit format. Sums are
in fp32, group by group. The result is rounded once.

Memory: a byte has two integers of one step of STEP inputs, those of its first half in the low bits. Inputs lie in the
order of their groups; `order` [in] is their place in x where act-order has moved them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.launch import Arguments, Launch, blocks_of, dot_precision
from kernels.gpu.quantized.sums import MOST_SPLIT_ROWS, finish, num_splits, partials_of, sum_launch

STEPS = (128, 64, 32)
"""The numbers of inputs that may be multiplied at once. The first number that divides a group's inputs is used."""


class Int4Weight(NamedTuple):
    """A matrix [O, K] as the kernel reads it, in G groups of inputs."""

    packed: Tensor
    """[O, K / 2] uint8."""
    scales: Tensor
    """[G, O] fp16, bf16 or fp32."""
    zeros: Tensor
    """[G, O] uint8."""
    order: Tensor | None
    """[K] int32, the place of each input in the rows; None: inputs lie in order."""
    inputs: int
    """The number of inputs of a group, a multiple of step."""
    step: int
    """The number of inputs that are multiplied at once, one of STEPS."""

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of the matrix's outputs and inputs; each byte has two inputs."""
        return self.packed.shape[0], self.packed.shape[1] * 2


def step_of(num_inputs: int, inputs: int) -> int | None:
    """Return the inputs of a step of a matrix with groups of `inputs`; None where the kernel has no such step."""
    return next((step for step in STEPS if inputs % step == 0 and num_inputs % inputs == 0), None)


def packed_int4(
    integers: Tensor, scales: Tensor, zeros: Tensor, inputs: int, groups: Tensor | None = None
) -> Int4Weight | None:
    """Return a matrix as the kernel reads it; None where the kernel cannot multiply by such a matrix.

    integers [O, K] uint8; scales [O, G]; zeros [O, G] uint8; groups [K]: the group of each input; None: in order.
    """
    num_outputs, num_inputs = integers.shape
    step = step_of(num_inputs, inputs)
    if step is None:
        return None
    order = None
    if groups is not None:
        if not bool((torch.bincount(groups, minlength=scales.shape[1]) == inputs).all()):
            return None
        order = torch.argsort(groups, stable=True)
        integers = integers[:, order]
        order = order.to(torch.int32)
    halves = integers.view(num_outputs, -1, 2, step // 2)
    packed = (halves[:, :, 0] | (halves[:, :, 1] << 4)).reshape(num_outputs, -1)
    return Int4Weight(packed, _narrow(scales).T.contiguous(), zeros.T.contiguous(), order, inputs, step)


def _narrow(scales: Tensor) -> Tensor:
    """Return scales in 16 bits if no scale changes by that, else unchanged."""
    for dtype in (torch.float16, torch.bfloat16):
        narrow = scales.to(dtype)
        if torch.equal(narrow.to(scales.dtype), scales):
            return narrow
    return scales


def int4_linear_reference(x: Tensor, weight: Int4Weight, bias: Tensor | None = None) -> Tensor:
    """Return the product [N, O] fp32 of x [N, K] by the definition.

    bias: [O]; None without one.
    """
    num_outputs, num_inputs = weight.shape
    pairs = weight.packed.view(num_outputs, -1, 1, weight.step // 2)
    integers = torch.cat((pairs & 15, pairs >> 4), 2).reshape(num_outputs, num_inputs)
    groups = torch.arange(num_inputs, device=x.device) // weight.inputs
    zeros, scales = weight.zeros.T[:, groups].float(), weight.scales.T[:, groups].float()
    matrix = (integers.float() - zeros) * scales
    taken = x.float() if weight.order is None else x.float()[:, weight.order.long()]
    out = taken @ matrix.T
    return out if bias is None else out + bias.float()


@triton.jit(do_not_specialize=["num_rows"])
def _int4_kernel(
    out,
    partials,
    x,
    packed,
    scales,
    zeros,
    order,
    bias,
    num_rows,
    num_outputs,
    num_inputs,
    x_stride,
    out_stride,
    INPUTS: tl.constexpr,
    STEP: tl.constexpr,
    ORDERED: tl.constexpr,
    BIAS: tl.constexpr,
    ADD: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Compute BLOCK_O outputs of BLOCK_N rows over one split of the inputs."""
    o = tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)
    row = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    split = tl.program_id(2)
    half: tl.constexpr = STEP // 2
    k = tl.arange(0, half)
    has_output, has_row = o < num_outputs, row < num_rows
    rows = x + row.to(tl.int64) * x_stride
    of_outputs = packed + o.to(tl.int64)[:, None] * (num_inputs // 2)
    num_steps = num_inputs // STEP
    of_split = tl.cdiv(num_steps, SPLITS)
    begin = split * of_split
    sums = tl.zeros((BLOCK_O, BLOCK_N), tl.float32)
    for step in range(begin, tl.minimum(begin + of_split, num_steps)):
        pair = tl.load(of_outputs + step * half + k, mask=has_output[:, None], other=0)
        group = step * STEP // INPUTS
        scale = tl.load(scales + group * num_outputs + o, mask=has_output, other=0.0).to(tl.float32)
        zero = tl.load(zeros + group * num_outputs + o, mask=has_output, other=0).to(tl.int16)[:, None]
        first, second = step * STEP + k, step * STEP + half + k
        if ORDERED:
            first, second = tl.load(order + first), tl.load(order + second)
        low = ((pair & 15).to(tl.int16) - zero).to(x.dtype.element_ty)
        high = ((pair >> 4).to(tl.int16) - zero).to(x.dtype.element_ty)
        x_low = tl.load(rows + first[:, None], mask=has_row, other=0.0)
        x_high = tl.load(rows + second[:, None], mask=has_row, other=0.0)
        of_step = tl.dot(low, x_low, input_precision=PRECISION)
        of_step = tl.dot(high, x_high, of_step, input_precision=PRECISION)
        sums += of_step * scale[:, None]
    finish(out, partials, bias, sums, row, o, split, num_rows, num_outputs, out_stride, BIAS, ADD, SPLITS)


class Int4Blocks(NamedTuple):
    """Block sizes and launch settings of a product."""

    block_o: int
    """The outputs of a tile."""
    block_n: int
    """The rows of a tile."""
    num_warps: int
    num_stages: int


def int4_blocks(num_rows: int, dtype: torch.dtype) -> Int4Blocks:
    """Return the block sizes for a product with num_rows rows."""
    if num_rows > MOST_SPLIT_ROWS:
        return Int4Blocks(64, 32, 4, 2) if dtype == torch.float32 else Int4Blocks(128, 64, 8, 3)
    return Int4Blocks(64, 16 if num_rows <= 16 else 32 if num_rows <= 32 else 64, 4, 2 if dtype == torch.float32 else 4)


def int4_launches(
    out: Tensor, x: Tensor, weight: Int4Weight, bias: Tensor | None = None, *, add: bool = False
) -> list[Launch]:
    """Return the launches that compute the product of x [N, K] into out [N, O], both with rows of any stride.

    add: True adds the product to out instead of overwriting it. bias: [O]; None without one.
    """
    num_outputs, num_inputs = weight.shape
    num_rows = len(x)
    blocks = int4_blocks(num_rows, x.dtype)
    splits = num_splits(num_rows, num_outputs, num_inputs // weight.step, blocks.block_o)
    partials = partials_of(splits, num_rows, num_outputs, x.device)
    arguments: Arguments = {
        "out": out,
        "partials": partials,
        "x": x,
        "packed": weight.packed,
        "scales": weight.scales,
        "zeros": weight.zeros,
        "order": weight.order,
        "bias": bias,
        "num_rows": num_rows,
        "num_outputs": num_outputs,
        "num_inputs": num_inputs,
        "x_stride": x.stride(0),
        "out_stride": out.stride(0),
        "INPUTS": weight.inputs,
        "STEP": weight.step,
        "ORDERED": weight.order is not None,
        "BIAS": bias is not None,
        "ADD": add,
        "SPLITS": splits,
        "BLOCK_O": blocks.block_o,
        "BLOCK_N": blocks.block_n,
        "PRECISION": dot_precision(x.dtype),
    }
    grid = blocks_of(num_outputs, blocks.block_o), blocks_of(num_rows, blocks.block_n), splits
    launch = Launch(_int4_kernel, grid, arguments, blocks.num_warps, blocks.num_stages)
    return [launch] if partials is None else [launch, sum_launch(out, partials, bias, add=add)]


def int4_linear_(
    out: Tensor, x: Tensor, weight: Int4Weight, bias: Tensor | None = None, *, add: bool = False
) -> Tensor:
    """Write the product of x [N, K] to out [N, O], or add it, and return out.

    bias: [O]; None without one. add: True: the product is added.
    """
    for launch in int4_launches(out, x, weight, bias, add=add):
        launch.run()
    return out
