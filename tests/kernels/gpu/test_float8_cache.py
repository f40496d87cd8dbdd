"""A cache in e4m3 with a scale for each key and value: it is written by its definition, and attention reads the numbers
that it holds."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.gpu.attention import paged_attention_, paged_attention_reference, workspace_elements
from kernels.gpu.rope_kv import HeadNorms, rope_and_write_kv_, rope_and_write_kv_reference
from tests.kernels.gpu.compare import DEVICE, DTYPES, assert_near, poisoned, randn
from tests.kernels.gpu.test_attention import CHUNKS, DECODES, CachedSequences


def in_float8(cache: Tensor) -> tuple[Tensor, Tensor]:
    """Return a cache's numbers in e4m3 with their scales; numbers that are not finite stay so."""
    scales = cache.float().abs().amax(-1) / 448.0
    return (cache.float() / scales[..., None]).to(torch.float8_e4m3fn), scales


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("window", "softcap"), [(None, 0.0), (20, 0.0), (None, 0.5)])
@pytest.mark.parametrize("lengths", [[*DECODES, (600, 1)], CHUNKS], ids=["decode", "prefill"])
@pytest.mark.parametrize(("group", "head_dim"), [(1, 64), (4, 128), (7, 80)])
def test_attention_over_a_float8_cache_equals_its_definition(
    group: int,
    head_dim: int,
    lengths: list[tuple[int, int]],
    window: int | None,
    softcap: float,
    dtype: torch.dtype,
    full: bool,
) -> None:
    """Each kind of steps is computed in one dtype, and at full size in both."""
    if not full and (lengths is CHUNKS) != (dtype is torch.float16):
        pytest.skip("the other dtype has these steps")
    if (window, softcap) != (None, 0.0) and group == 7:
        pytest.skip("the same as with groups of one")
    if (window, softcap) != (None, 0.0) and group != 4:
        group, head_dim = 3, 64
    cached = CachedSequences((2 * group, 2, head_dim), lengths, dtype)
    numbers, scales = in_float8(cached.cache)
    shape = cached.q.shape[1], 2, head_dim
    workspace = poisoned(workspace_elements(len(cached.q), *shape, cached.contexts.max_context_len, dtype, DEVICE))
    out = poisoned(*cached.q.shape, dtype=dtype)
    paged_attention_(out, cached.q, numbers, cached.contexts, workspace, window, softcap, scales)
    assert_near(out.flatten(1), paged_attention_reference(cached.q, numbers, cached.contexts, window, softcap, scales))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(1, 1, 64), (9, 3, 80), (8, 1, 128)])
def test_a_float8_cache_is_written_by_its_definition(
    heads: int, kv_heads: int, head_dim: int, normed: bool, dtype: torch.dtype
) -> None:
    """A number near the middle of two may be rounded to either, since cosines are multiplied in another order."""
    num_rows, num_slots = 13, 40
    qkv = randn(num_rows, heads + 2 * kv_heads, head_dim, dtype=dtype)
    qkv[3] = 0
    qkv[4, heads:] *= 1e3
    angles = randn(100, head_dim // 2)
    arguments = torch.randint(100, (num_rows,)).to(DEVICE), angles.cos(), angles.sin()
    slots = torch.randperm(num_slots)[:num_rows].to(DEVICE)
    slots[[2, 5]] = -1
    norms = HeadNorms(randn(head_dim, dtype=dtype), randn(head_dim, dtype=dtype), 1e-6) if normed else None
    cache, scales = in_float8(randn(2, kv_heads, num_slots, head_dim))
    expected, expected_scales = cache.clone(), scales.clone()
    q = rope_and_write_kv_reference(qkv, *arguments, expected, slots, norms, expected_scales)
    assert_near(rope_and_write_kv_(qkv, *arguments, cache, slots, norms, scales), q)
    torch.testing.assert_close(scales, expected_scales, rtol=1e-2 if dtype == torch.bfloat16 else 1e-3, atol=0)
    ours, theirs = (each.float() * scale[..., None] for each, scale in ((cache, scales), (expected, expected_scales)))
    assert ours.isfinite().all()
    assert ((ours - theirs).abs() <= theirs.abs() / 8 + expected_scales[..., None] * 2**-8).all()
    assert (ours - theirs).norm() <= 0.01 * theirs.norm()
    untouched = torch.ones(num_slots, dtype=torch.bool, device=DEVICE)
    untouched[slots[slots >= 0]] = False
    assert torch.equal(cache.view(torch.uint8)[:, :, untouched], expected.view(torch.uint8)[:, :, untouched])


@pytest.mark.filterwarnings(
    "ignore:invalid value:RuntimeWarning", "ignore:overflow:RuntimeWarning"
)  # by the interpreter
def test_a_float8_cache_holds_finite_numbers_only() -> None:
    qkv = randn(4, 3, 64, dtype=torch.float16)
    qkv[0, 1, 3], qkv[1, 2, 40], qkv[2, 2, 5], qkv[3, 1, 9] = torch.nan, torch.inf, -torch.inf, 65504.0
    cache = torch.zeros(2, 1, 4, 64, dtype=torch.float8_e4m3fn, device=DEVICE)
    scales = torch.zeros(2, 1, 4, device=DEVICE)
    angles, rows = randn(4, 32), torch.arange(4, device=DEVICE)
    rope_and_write_kv_(qkv, rows, angles.cos() * 2, angles.sin() * 2, cache, rows, None, scales)
    assert cache.float().isfinite().all()
    assert scales.isfinite().all()
