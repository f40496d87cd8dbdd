"""Every operation equals its reference: odd sizes, both float widths that serve, every grouping of heads."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.activation import gelu_mul, gelu_mul_reference, silu_mul, silu_mul_reference
from kernels.attention import attention_reference, decode_attention, prefill_attention
from kernels.kv_cache import write_kv, write_kv_reference
from kernels.linear import Linear
from kernels.norm import RmsNorm, rms_norm_reference
from kernels.rope import rope, rope_reference, wide_tables
from kernels.workspace import Workspace

DTYPES = [torch.float32, torch.bfloat16]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def assert_near(ours: Tensor, theirs: Tensor) -> None:
    tolerance = TOLERANCE[ours.dtype]
    torch.testing.assert_close(ours.float(), theirs.float(), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 8), (7, 63), (129, 576)], ids=str)
def test_rms_norm_equals_its_reference(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, weight = torch.randn(shape, dtype=dtype), torch.randn(shape[-1], dtype=dtype)
    assert_near(RmsNorm(weight, 1e-5)(x), rms_norm_reference(x, weight, 1e-5))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("tokens", "heads", "dim"), [(1, 1, 2), (7, 3, 64), (63, 9, 80)])
def test_rope_of_a_strided_view_equals_its_reference(tokens: int, heads: int, dim: int, dtype: torch.dtype) -> None:
    whole = torch.randn(tokens, heads * dim + 5, dtype=dtype)
    view = whole[:, 5:].view(tokens, heads, dim)
    angles = torch.randn(tokens, dim // 2)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    assert_near(rope(view, *wide_tables(cos[:, None], sin[:, None])), rope_reference(view, cos, sin))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 2), (7, 130), (64, 3072)], ids=str)
def test_silu_mul_equals_its_reference(shape: tuple[int, int], dtype: torch.dtype) -> None:
    gate_up = torch.randn(shape, dtype=dtype)
    expected = silu_mul_reference(gate_up)
    assert_near(silu_mul(gate_up), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 2), (7, 130), (64, 3072)], ids=str)
def test_gelu_mul_equals_its_reference(shape: tuple[int, int], dtype: torch.dtype) -> None:
    gate_up = torch.randn(shape, dtype=dtype)
    assert_near(gelu_mul(gate_up), gelu_mul_reference(gate_up))


def test_write_kv_touches_its_slots_only() -> None:
    cache, expected = torch.randn(2, 3, 40, 8).expand(2, -1, -1, -1, -1).clone()
    k, v, slots = torch.randn(7, 3, 8), torch.randn(7, 3, 8), torch.randperm(40)[:7]
    expected.copy_(cache)
    write_kv(cache, torch.cat((k, v), 1), slots)
    write_kv_reference(expected, k, v, slots)
    assert torch.equal(cache, expected)


ATTENTION = [(1, 1, 16), (4, 4, 64), (9, 3, 64), (8, 1, 80), (16, 2, 128)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), ATTENTION)
def test_decode_attention_equals_its_reference(
    heads: int, kv_heads: int, dim: int, window: int | None, dtype: torch.dtype
) -> None:
    lengths, block_size = [1, 7, 33, 16], 8
    cache = torch.randn(2, kv_heads, 20 * block_size, dim, dtype=dtype)
    blocks = torch.randperm(20).view(4, 5)
    slots = (blocks[:, :, None] * block_size + torch.arange(block_size)).flatten(1)
    hidden = torch.ones(4, 1, 5 * block_size, dtype=torch.bool)
    for row, length in enumerate(lengths):
        hidden[row, 0, max(0, length - (window or length)) : length] = False
        cache[0, :, slots[row, length:]] = torch.finfo(dtype).max  # values that another sequence left may overflow
    q = torch.randn(4, heads, dim, dtype=dtype)
    ours = decode_attention(q, cache, blocks, hidden, Workspace(dtype, q.device)).view(4, heads, dim)
    for row, length in enumerate(lengths):
        assert_near(ours[row], attention_reference(q[row], cache, slots[row], length - 1, window))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), ATTENTION)
def test_prefill_attention_over_a_cached_prefix_equals_its_reference(
    heads: int, kv_heads: int, dim: int, window: int | None, dtype: torch.dtype
) -> None:
    first, count = 9, 14
    cache = torch.randn(2, kv_heads, 64, dim, dtype=dtype)
    slots = torch.randperm(64)[: first + count]
    q = torch.randn(count, heads, dim, dtype=dtype)
    queries, keys = torch.arange(first, first + count)[:, None], torch.arange(first + count)[None]
    visible = (keys <= queries) & (keys > queries - (window or 10**9))
    ours = prefill_attention(q, cache, slots, visible).view(count, heads, dim)
    for row in range(count):
        assert_near(ours[row], attention_reference(q[row], cache, slots, first + row, window))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [1, 7, 129])
@pytest.mark.parametrize("bias", [True, False])
def test_linear_equals_its_reference(bias: bool, rows: int, dtype: torch.dtype) -> None:
    x, weight, y = torch.randn(rows, 48, dtype=dtype), torch.randn(40, 48, dtype=dtype) / 7, torch.randn(rows, 40)
    vector = torch.randn(40, dtype=dtype) if bias else None
    expected = x.float() @ weight.float().T
    linear = Linear(weight, vector)
    assert_near(linear(x), (expected + (vector.float() if vector is not None else 0)).to(dtype))
    if vector is None:
        assert_near(linear.add(x, y.to(dtype)), (expected + y.to(dtype).float()).to(dtype))
