"""Products with matrices of few bits equal their definitions, at odd sizes, into memory that held no numbers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.gpu.quantized.float8 import (
    Float8Rows,
    Float8Weight,
    float8_linear_,
    float8_linear_reference,
    quantize,
    quantize_reference,
)
from kernels.gpu.quantized.int4 import Int4Weight, int4_linear_, int4_linear_reference, packed_int4
from tests.kernels.gpu.compare import DEVICE, DTYPES, assert_near, poisoned, randn

ROWS = (1, 5, 33, 130)


def int4_weight(outputs: int, inputs: int, group: int, *, ordered: bool = False) -> tuple[Int4Weight, Tensor]:
    """Return a random 4-bit matrix, and the numbers [outputs, inputs] that it represents."""
    num_groups = inputs // group
    integers = torch.randint(16, (outputs, inputs), dtype=torch.uint8)
    scales = torch.rand(outputs, num_groups).half().float() + 0.5
    scales = scales.half().float()
    zeros = torch.randint(1, 16, (outputs, num_groups), dtype=torch.uint8)
    groups = torch.arange(inputs) // group
    if ordered:
        groups = groups[torch.randperm(inputs)]
    numbers = (integers.float() - zeros.float()[:, groups]) * scales[:, groups]
    on_device = integers.to(DEVICE), scales.to(DEVICE), zeros.to(DEVICE)
    weight = packed_int4(*on_device, group, groups.to(DEVICE) if ordered else None)
    assert weight is not None
    return weight, numbers.to(DEVICE)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize(
    ("outputs", "inputs", "group"), [(1, 32, 32), (70, 96, 32), (65, 320, 64), (130, 1024, 128), (48, 640, 640)]
)
def test_int4_products_equal_their_definition(
    outputs: int, inputs: int, group: int, ordered: bool, dtype: torch.dtype, full: bool
) -> None:
    """Each order is multiplied in one dtype, and at full size in both."""
    if not full and ordered != (dtype is torch.float16):
        pytest.skip("the other dtype has this order")
    weight, numbers = int4_weight(outputs, inputs, group, ordered=ordered)
    bias = randn(outputs, dtype=dtype)
    for num_rows in ROWS:
        x = randn(num_rows, inputs + 3, dtype=dtype)[:, :inputs]
        exact = x.float() @ numbers.T
        torch.testing.assert_close(int4_linear_reference(x, weight), exact, rtol=1e-4, atol=1e-3)
        out = poisoned(num_rows, outputs + 5, dtype=dtype)
        ours = int4_linear_(out[:, 2 : outputs + 2], x, weight)
        assert_near(ours, exact.to(dtype))
        assert out[:, :2].isnan().all() and out[:, outputs + 2 :].isnan().all()
        assert_near(int4_linear_(torch.empty_like(ours), x, weight, bias), (exact + bias.float()).to(dtype))
        residual = randn(num_rows, outputs, dtype=dtype) * exact.abs().mean().to(dtype)
        expected = (exact + bias.float() + residual.float()).to(dtype)
        assert_near(int4_linear_(residual, x, weight, bias, add=True), expected)


def test_what_the_int4_kernel_does_not_multiply_is_told() -> None:
    integers, scales, zeros = torch.zeros(4, 48, dtype=torch.uint8), torch.ones(4, 3), torch.ones(4, 3).to(torch.uint8)
    assert packed_int4(integers, scales, zeros, 16) is None
    uneven = torch.tensor([0] * 40 + [1] * 24)
    assert packed_int4(torch.zeros(4, 64, dtype=torch.uint8), scales[:, :2], zeros[:, :2], 32, uneven) is None


@pytest.mark.parametrize("stretch", [0, 32, 128])
@pytest.mark.parametrize("inputs", [32, 160, 1100, 2048])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_are_rounded_to_e4m3(inputs: int, stretch: int, dtype: torch.dtype) -> None:
    x = randn(7, inputs + 8, dtype=dtype)[:, 8:]
    x[2] = 0
    x[3, : inputs // 2] = 0
    x[4] *= 1e-6
    x[5] *= 1e4
    ours, expected = quantize(x, stretch), quantize_reference(x, stretch)
    torch.testing.assert_close(ours.scales, expected.scales, rtol=1e-6, atol=0)
    assert torch.equal(ours.numbers.float(), expected.numbers.float())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("outputs", "inputs", "rows", "stretch"),
    [
        (1, 32, 1, 0),
        (70, 100, 1, 0),
        (130, 1056, 1, 0),
        (65, 300, 128, 128),
        (200, 1024, 128, 128),
        (70, 96, 1, 32),
        (130, 640, 64, 64),
    ],
)
@pytest.mark.parametrize("is_rounded", [False, True])
def test_float8_products_equal_their_definition(
    outputs: int, inputs: int, rows: int, stretch: int, is_rounded: bool, dtype: torch.dtype, full: bool
) -> None:
    """Each kind of inputs is multiplied in one dtype, and at full size in both."""
    if not full and is_rounded != (dtype is torch.float16):
        pytest.skip("the other dtype has these inputs")
    numbers = randn(outputs, inputs).to(torch.float8_e4m3fn)
    num_scales = -(-outputs // rows), -(-inputs // (stretch or inputs))
    weight = Float8Weight(numbers, torch.rand(num_scales).to(DEVICE) + 0.5, rows, stretch)
    bias = randn(outputs, dtype=dtype)
    for num_rows in ROWS:
        x = randn(num_rows, inputs + 8, dtype=dtype)[:, 8:]
        found = quantize_reference(x, stretch) if is_rounded else Float8Rows(x, None)
        expected = float8_linear_reference(found, weight)
        out = poisoned(num_rows, outputs + 5, dtype=dtype)
        ours = float8_linear_(out[:, 2 : outputs + 2], found, weight)
        assert_near(ours, expected.to(dtype))
        assert out[:, :2].isnan().all() and out[:, outputs + 2 :].isnan().all()
        residual = randn(num_rows, outputs, dtype=dtype)
        wanted = (expected + bias.float() + residual.float()).to(dtype)
        assert_near(float8_linear_(residual, found, weight, bias, add=True), wanted)


def test_a_row_has_the_same_bits_beside_others() -> None:
    weight, _ = int4_weight(130, 1024, 128)
    eight = Float8Weight(randn(130, 1024).to(torch.float8_e4m3fn), torch.rand(2, 8).to(DEVICE), 128, 128)
    x = randn(64, 1024)
    together = int4_linear_(poisoned(64, 130), x, weight), float8_linear_(poisoned(64, 130), quantize(x, 128), eight)
    for row in (0, 40):
        alone = x[row : row + 1]
        assert torch.equal(int4_linear_(poisoned(1, 130), alone, weight)[0], together[0][row])
        assert torch.equal(float8_linear_(poisoned(1, 130), quantize(alone, 128), eight)[0], together[1][row])
