"""The operations around attention and the projections equal their definitions: norms, rotation, cache write,
activation."""

from __future__ import annotations

import pytest
import torch

from kernels.activation import gelu_mul_reference, silu_mul_reference
from kernels.gpu.activation import gelu_mul, silu_mul
from kernels.gpu.norm import add_rms_norm_, rms_norm
from kernels.gpu.rope_kv import HeadNorms, rope_and_write_kv_, rope_and_write_kv_reference
from kernels.norm import rms_norm_reference
from tests.kernels.gpu.compare import DEVICE, DTYPES, assert_near, randn

SHAPES = [(1, 8), (7, 576), (63, 100), (3, 4096), (129, 64)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rms_norm_equals_its_definition(shape: tuple[int, int], dtype: torch.dtype) -> None:
    x, weight = randn(shape[0], shape[1] + 8, dtype=dtype)[:, 8:], randn(shape[1], dtype=dtype)
    assert_near(rms_norm(x, weight, 1e-5), rms_norm_reference(x, weight, 1e-5))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_norm_of_a_stored_sum_equals_its_definition(shape: tuple[int, int], dtype: torch.dtype) -> None:
    x, residual, weight = randn(*shape, dtype=dtype), randn(*shape, dtype=dtype), randn(shape[1], dtype=dtype)
    expected = x + residual
    assert_near(add_rms_norm_(x, residual, weight, 1e-5), rms_norm_reference(expected, weight, 1e-5))
    assert torch.equal(residual, expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 2), (7, 130), (63, 3072), (129, 40)], ids=str)
def test_silu_mul_equals_its_definition(shape: tuple[int, int], dtype: torch.dtype) -> None:
    gate_up = 4 * randn(*shape, dtype=dtype)
    assert_near(silu_mul(gate_up), silu_mul_reference(gate_up))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 2), (7, 130), (63, 3072)], ids=str)
def test_gelu_mul_equals_its_definition(shape: tuple[int, int], dtype: torch.dtype) -> None:
    gate_up = 4 * randn(*shape, dtype=dtype)
    if shape[1] > 2:
        gate_up[:, 0] = -60.0  # where an exponential would overflow
    assert_near(gelu_mul(gate_up), gelu_mul_reference(gate_up))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"), [(1, 1, 64), (9, 3, 80), (4, 4, 96), (8, 1, 128), (3, 1, 256)]
)
def test_rotation_and_cache_write_equal_their_definition(
    heads: int, kv_heads: int, head_dim: int, normed: bool, dtype: torch.dtype
) -> None:
    num_rows = 13
    qkv = randn(num_rows, heads + 2 * kv_heads, head_dim, dtype=dtype)
    angles = randn(100, head_dim // 2)
    positions = torch.randint(100, (num_rows,)).to(DEVICE)
    slots = torch.randperm(40)[:num_rows].to(DEVICE)
    slots[[2, 5]] = -1
    norms = HeadNorms(randn(head_dim, dtype=dtype), randn(head_dim, dtype=dtype), 1e-6) if normed else None
    cache = randn(2, kv_heads, 40, head_dim, dtype=dtype)
    expected_cache = cache.clone()
    arguments = positions, angles.cos(), angles.sin()
    expected = rope_and_write_kv_reference(qkv, *arguments, expected_cache, slots, norms)
    before = qkv.clone()
    q = rope_and_write_kv_(qkv, *arguments, cache, slots, norms)
    assert_near(q, expected)
    assert_near(cache, expected_cache)
    assert torch.equal(cache[1], expected_cache[1])
    assert q.data_ptr() == qkv.data_ptr()
    assert torch.equal(qkv[:, heads:], before[:, heads:])


@pytest.mark.filterwarnings(
    "ignore:invalid value:RuntimeWarning", "ignore:overflow:RuntimeWarning"
)  # by the interpreter
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_cache_holds_numbers_only(dtype: torch.dtype) -> None:
    """The next owner of a block reads old values at weight 0, and 0 * NaN would not be 0."""
    qkv = randn(4, 3, 64, dtype=dtype)
    qkv[0, 1, 3], qkv[1, 2, 40], qkv[2, 2, 5], qkv[3, 1, 9] = torch.nan, torch.inf, -torch.inf, torch.finfo(dtype).max
    cache, expected = torch.zeros(2, 2, 1, 4, 64, dtype=dtype, device=DEVICE)
    angles = randn(4, 32)
    arguments = torch.arange(4, device=DEVICE), angles.cos() * 2, angles.sin() * 2
    slots = torch.arange(4, device=DEVICE)
    rope_and_write_kv_reference(qkv, *arguments, expected, slots)
    rope_and_write_kv_(qkv, *arguments, cache, slots)
    assert cache.isfinite().all()
    assert torch.equal(cache[1], expected[1])
    torch.testing.assert_close(cache[0].double(), expected[0].double(), atol=1e-2, rtol=1e-2)
