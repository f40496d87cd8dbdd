"""Products with a matrix in e4m3 on a GPU; rows of inputs as they are, or rounded to e4m3 beside it.

Semantics, for stretches g of STRETCH inputs, or one stretch of all of them:
    as they are: scales[n, g] = 1          numbers = x
    quantize: scales[n, g] = max_{i in g} |x[n, i]| / 448          numbers[n, i] = e4m3(x[n, i] / scales[n, g])
    out[n, o] = sum_g scales[n, g] * weight_scales[o / ROWS, g] * (sum_{i in g} numbers[n, i] * weight[o, i]) + bias[o]
    add: out[n, o] += the same
A stretch of zeros has the scale 0. Inner sums are in fp32; of products of e4m3 matrix units keep fewer bits, so they
add at most STEP of these before their sums go to fp32. The result is rounded once.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.launch import Arguments, Launch, blocks_of, dot_precision
from kernels.gpu.quantized.sums import MOST_SPLIT_ROWS, finish, num_splits, partials_of, sum_launch

STEP = 128
LARGEST = 448.0
STRETCHES = (32, 64, 128)
"""The numbers of inputs that may share a scale; all inputs of a row may share one, too."""
QUANTIZE_BLOCK = 1024


class Float8Weight(NamedTuple):
    """A matrix [O, K] as the kernel reads it."""

    numbers: Tensor
    """[O, K] float8_e4m3fn."""
    scales: Tensor
    """[ceil(O / rows), G] fp32, G stretches of inputs."""
    rows: int
    """The number of outputs that share a scale."""
    stretch: int
    """The number of inputs that share a scale; 0: all."""

    @property
    def shape(self) -> tuple[int, int]:
        """The matrix's outputs and inputs."""
        return self.numbers.shape[0], self.numbers.shape[1]


class Float8Rows(NamedTuple):
    """Rows of inputs, which have any stride."""

    numbers: Tensor
    """[N, K], in float8_e4m3fn where there are scales, else in a wider dtype."""
    scales: Tensor | None
    """[N, G] fp32, G stretches of inputs; None where the numbers are not quantized."""


def quantize_reference(x: Tensor, stretch: int) -> Float8Rows:
    """Return the rows of x [N, K] in e4m3 by the definition.

    stretch: the inputs that share a scale; 0: all of a row.
    """
    num_rows, num_inputs = x.shape
    width = stretch or num_inputs
    groups = torch.nn.functional.pad(x.float(), (0, -num_inputs % width)).view(num_rows, -1, width)
    scales = groups.abs().amax(-1) / LARGEST
    scaled = torch.where(scales[..., None] > 0, groups / scales[..., None], 0.0).clamp(-LARGEST, LARGEST)
    return Float8Rows(scaled.flatten(1)[:, :num_inputs].contiguous().to(torch.float8_e4m3fn), scales)


def _dequantized_rows(numbers: Tensor, scales: Tensor, rows: int, stretch: int) -> Tensor:
    outputs, inputs = numbers.shape
    of_rows = scales.repeat_interleave(rows, 0)[:outputs]
    return numbers.float() * of_rows.repeat_interleave(stretch or inputs, 1)[:, :inputs]


def float8_linear_reference(rows: Float8Rows, weight: Float8Weight, bias: Tensor | None = None) -> Tensor:
    """Return the product [N, O] fp32 of rows [N, K] by the definition.

    bias: [O]; None without one.
    """
    x = rows.numbers.float() if rows.scales is None else _dequantized_rows(rows.numbers, rows.scales, 1, weight.stretch)
    out = x @ _dequantized_rows(*weight).T
    return out if bias is None else out + bias.float()


@triton.jit
def _quantize_kernel(
    numbers, scales, x, num_inputs, num_stretches, x_stride, STRETCH: tl.constexpr, BLOCK: tl.constexpr
):
    """Round one row, or a block of whole stretches of it. STRETCH 0: the row is one stretch."""
    row = tl.program_id(0).to(tl.int64)
    source, target = x + row * x_stride, numbers + row * num_inputs
    if STRETCH == 0:
        largest = tl.zeros((BLOCK,), tl.float32)
        for begin in range(0, num_inputs, BLOCK):
            i = begin + tl.arange(0, BLOCK)
            largest = tl.maximum(largest, tl.abs(tl.load(source + i, mask=i < num_inputs, other=0.0).to(tl.float32)))
        scale = tl.div_rn(tl.max(largest, 0), 448.0)
        tl.store(scales + row, scale)
        for begin in range(0, num_inputs, BLOCK):
            i = begin + tl.arange(0, BLOCK)
            value = tl.load(source + i, mask=i < num_inputs, other=0.0).to(tl.float32)
            value = tl.div_rn(value, tl.where(scale > 0.0, scale, 1.0))
            value = tl.minimum(tl.maximum(value, -448.0), 448.0)
            tl.store(target + i, value.to(tl.float8e4nv), mask=i < num_inputs)
    else:
        stretches: tl.constexpr = BLOCK // STRETCH
        g = tl.program_id(1) * stretches + tl.arange(0, stretches)
        i = g[:, None] * STRETCH + tl.arange(0, STRETCH)
        value = tl.load(source + i, mask=i < num_inputs, other=0.0).to(tl.float32)
        scale = tl.div_rn(tl.max(tl.abs(value), 1), 448.0)
        tl.store(scales + row * num_stretches + g, scale, mask=g < num_stretches)
        value = tl.div_rn(value, tl.where(scale > 0.0, scale, 1.0)[:, None])
        value = tl.minimum(tl.maximum(value, -448.0), 448.0)
        tl.store(target + i, value.to(tl.float8e4nv), mask=i < num_inputs)


def quantize_launch(rows: Float8Rows, x: Tensor, stretch: int) -> Launch:
    """Return the launch that rounds x [N, K], whose rows have any stride.

    rows: the memory that gets the result. stretch: as for `quantize_reference`.
    """
    assert rows.scales is not None
    num_rows, num_inputs = x.shape
    arguments: Arguments = {
        "numbers": rows.numbers,
        "scales": rows.scales,
        "x": x,
        "num_inputs": num_inputs,
        "num_stretches": rows.scales.shape[1],
        "x_stride": x.stride(0),
        "STRETCH": stretch,
        "BLOCK": QUANTIZE_BLOCK,
    }
    return Launch(_quantize_kernel, (num_rows, 1 if stretch == 0 else blocks_of(num_inputs, QUANTIZE_BLOCK)), arguments)


def empty_rows(x: Tensor, stretch: int) -> Float8Rows:
    """Return memory for the rows of x [N, K] in e4m3.

    stretch: as for `quantize_reference`.
    """
    num_rows, num_inputs = x.shape
    num_stretches = blocks_of(num_inputs, stretch or num_inputs)
    return Float8Rows(
        torch.empty(num_rows, num_inputs, dtype=torch.float8_e4m3fn, device=x.device),
        torch.empty(num_rows, num_stretches, dtype=torch.float32, device=x.device),
    )


def quantize(x: Tensor, stretch: int) -> Float8Rows:
    """Return the rows of x [N, K] in e4m3.

    stretch: the inputs that share a scale; 0: all of a row.
    """
    rows = empty_rows(x, stretch)
    quantize_launch(rows, x, stretch).run()
    return rows


@triton.jit(do_not_specialize=["num_rows"])
def _float8_kernel(
    out,
    partials,
    x,
    x_scales,
    weight,
    scales,
    bias,
    num_rows,
    num_outputs,
    num_inputs,
    num_stretches,
    x_stride,
    out_stride,
    ROWS: tl.constexpr,
    STRETCH: tl.constexpr,
    STEP: tl.constexpr,
    BIAS: tl.constexpr,
    ADD: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_N: tl.constexpr,
    ROUNDED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Compute BLOCK_O outputs of BLOCK_N rows over one split of the inputs."""
    o = tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)
    row = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    split = tl.program_id(2)
    i = tl.arange(0, STEP)
    has_output, has_row = o < num_outputs, row < num_rows
    rows = x + row.to(tl.int64) * x_stride
    of_outputs = weight + o.to(tl.int64)[:, None] * num_inputs
    num_steps = tl.cdiv(num_inputs, STEP)
    of_split = tl.cdiv(num_steps, SPLITS)
    begin = split * of_split
    sums = tl.zeros((BLOCK_O, BLOCK_N), tl.float32)
    for step in range(begin, tl.minimum(begin + of_split, num_steps)):
        k = step * STEP + i
        w = tl.load(of_outputs + k, mask=has_output[:, None] & (k < num_inputs), other=0.0)
        numbers = tl.load(rows + k[:, None], mask=(k < num_inputs)[:, None] & has_row, other=0.0)
        if STRETCH == 0:
            if ROUNDED:
                sums = tl.dot(w, numbers, sums, max_num_imprecise_acc=STEP)
            else:
                sums = tl.dot(w.to(x.dtype.element_ty), numbers, sums, input_precision=PRECISION)
        else:
            if ROUNDED:
                of_step = tl.dot(w, numbers)
            else:
                of_step = tl.dot(w.to(x.dtype.element_ty), numbers, input_precision=PRECISION)
            g = step * STEP // STRETCH
            w_scale = tl.load(scales + o // ROWS * num_stretches + g, mask=has_output, other=0.0)
            of_step *= w_scale[:, None]
            if ROUNDED:
                of_step *= tl.load(x_scales + row * num_stretches + g, mask=has_row, other=0.0)
            sums += of_step
    if STRETCH == 0:
        w_scale = tl.load(scales + o // ROWS, mask=has_output, other=0.0)
        sums *= w_scale[:, None]
        if ROUNDED:
            sums *= tl.load(x_scales + row, mask=has_row, other=0.0)
    finish(out, partials, bias, sums, row, o, split, num_rows, num_outputs, out_stride, BIAS, ADD, SPLITS)


class Float8Blocks(NamedTuple):
    """Block sizes and launch settings of a product."""

    block_o: int
    """The outputs of a tile."""
    block_n: int
    """The rows of a tile."""
    num_warps: int
    num_stages: int


def float8_blocks(num_rows: int, stretch: int, itemsize: int) -> Float8Blocks:
    """Return the block sizes for a product with num_rows rows, whose numbers have itemsize bytes."""
    if num_rows > MOST_SPLIT_ROWS:  # with scales along the inputs, or converted matrices, more is in registers
        return Float8Blocks(128, 64 if stretch or itemsize > 1 else 128, 8, 3 if itemsize < 4 else 2)
    block_n = 16 if num_rows <= 16 else 32 if num_rows <= 32 else 64
    return Float8Blocks(64, block_n, 4, 4 if itemsize < 4 else 2)


def float8_launches(
    out: Tensor, rows: Float8Rows, weight: Float8Weight, bias: Tensor | None = None, *, add: bool = False
) -> list[Launch]:
    """Return the launches that compute the product of rows into out [N, O], whose rows have any stride.

    add: True adds the product to out instead of overwriting it. bias: [O]; None without one.
    """
    num_outputs, num_inputs = weight.shape
    num_rows = len(rows.numbers)
    blocks = float8_blocks(num_rows, weight.stretch, rows.numbers.dtype.itemsize)
    step = weight.stretch or (STEP if rows.numbers.dtype.itemsize < 4 else 64)
    splits = num_splits(num_rows, num_outputs, blocks_of(num_inputs, step), blocks.block_o)
    partials = partials_of(splits, num_rows, num_outputs, out.device)
    arguments: Arguments = {
        "out": out,
        "partials": partials,
        "x": rows.numbers,
        "x_scales": rows.scales,
        "weight": weight.numbers,
        "scales": weight.scales,
        "bias": bias,
        "num_rows": num_rows,
        "num_outputs": num_outputs,
        "num_inputs": num_inputs,
        "num_stretches": weight.scales.shape[1],
        "x_stride": rows.numbers.stride(0),
        "out_stride": out.stride(0),
        "ROWS": weight.rows,
        "STRETCH": weight.stretch,
        "STEP": step,
        "BIAS": bias is not None,
        "ADD": add,
        "SPLITS": splits,
        "BLOCK_O": blocks.block_o,
        "BLOCK_N": blocks.block_n,
        "ROUNDED": rows.scales is not None,
        "PRECISION": dot_precision(rows.numbers.dtype),
    }
    grid = blocks_of(num_outputs, blocks.block_o), blocks_of(num_rows, blocks.block_n), splits
    launch = Launch(_float8_kernel, grid, arguments, blocks.num_warps, blocks.num_stages)
    return [launch] if partials is None else [launch, sum_launch(out, partials, bias, add=add)]


def float8_linear_(
    out: Tensor, rows: Float8Rows, weight: Float8Weight, bias: Tensor | None = None, *, add: bool = False
) -> Tensor:
    """Write the product of rows [N, K] to out [N, O], or add it, and return out.

    bias: [O]; None without one. add: True: the product is added.
    """
    for launch in float8_launches(out, rows, weight, bias, add=add):
        launch.run()
    return out
