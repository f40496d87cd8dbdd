"""The native kernels of rows: near their references on every path, the same bits on all, nothing else written."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kernels.activation import gelu_mul_reference, silu_mul_reference
from kernels.attention import attention_reference
from kernels.cpu.decoder import CACHE_BLOCK
from kernels.cpu.library import NativeLibrary
from kernels.lora import lora_reference
from kernels.norm import rms_norm_reference
from kernels.rope import rope_reference

WIDTHS = [1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 100, 576, 577]
DTYPES = [torch.float32, torch.bfloat16]
CODES = {torch.float32: 0, torch.bfloat16: 1}


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def poisoned(count: int) -> tuple[Tensor, Tensor]:
    """Return memory of NaN, and a view of `count` elements in its middle."""
    around = torch.full((count + 40,), torch.nan)
    return around, around[20 : 20 + count]


def on_all_paths(library: NativeLibrary, count: int, call: Callable[[int, Tensor], None]) -> Tensor:
    """Return the result of all paths of the library, after checking that all have the same bits and that
    none writes outside of its result.
    """
    results = []
    for path in range(len(library.paths)):
        around, out = poisoned(count)
        call(path, out)
        assert not out.isnan().any()
        assert around.isnan().sum() == 40
        results.append(out.clone())
    assert all(torch.equal(results[0], other) for other in results[1:])
    return results[0]


@pytest.mark.parametrize("width", WIDTHS)
def test_norms_are_near_their_reference(library: NativeLibrary, width: int) -> None:
    x, weight = torch.randn(width) * 10, torch.randn(width)
    call = library.functions.lorikeet_norm
    out = on_all_paths(
        library, width, lambda path, out: call(path, x.data_ptr(), weight.data_ptr(), 1e-5, width, out.data_ptr())
    )
    assert torch.allclose(out, rms_norm_reference(x, weight, 1e-5), rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("head_dim", [2, 6, 16, 30, 64, 66, 96, 128, 256])
def test_rotations_are_near_their_reference(library: NativeLibrary, head_dim: int) -> None:
    x, angles = torch.randn(head_dim), torch.randn(head_dim // 2)
    cos, sin = angles.cos(), angles.sin()

    def rotate(path: int, out: Tensor) -> None:
        out.copy_(x)
        library.functions.lorikeet_rotate(path, out.data_ptr(), cos.data_ptr(), sin.data_ptr(), head_dim)

    out = on_all_paths(library, head_dim, rotate)
    assert torch.allclose(out, rope_reference(x[None, None], cos[None], sin[None])[0, 0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("width", WIDTHS)
def test_gated_activations_are_near_their_reference(library: NativeLibrary, width: int) -> None:
    gate_up = torch.randn(2 * width) * 20
    call = library.functions.lorikeet_gate
    for code, reference in ((0, silu_mul_reference), (1, gelu_mul_reference)):
        out = on_all_paths(
            library,
            width,
            lambda path, out, code=code: call(path, gate_up.data_ptr(), width, code, 0.5, out.data_ptr()),
        )
        assert torch.allclose(out, reference(gate_up[None])[0] * 0.5, rtol=2e-6, atol=1e-5)


@pytest.mark.parametrize("x", [0.0, -0.0, 1e-30, 80.0, -80.0, 200.0, -200.0, 1e30, -1e30])
def test_activations_of_extreme_numbers_are_near_their_reference(library: NativeLibrary, x: float) -> None:
    gate_up = torch.tensor([x, 1.0])
    call = library.functions.lorikeet_gate
    out = on_all_paths(library, 1, lambda path, out: call(path, gate_up.data_ptr(), 1, 0, 1.0, out.data_ptr()))
    assert torch.allclose(out, silu_mul_reference(gate_up[None])[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "width", "rank"), [(1, 1, 1), (1, 576, 16), (2, 33, 7), (3, 64, 5), (17, 100, 9)])
def test_products_of_adapters_are_near_their_reference(
    library: NativeLibrary, rows: int, width: int, rank: int, dtype: torch.dtype
) -> None:
    outputs = width + 13
    x, scaling = torch.randn(rows, width), 0.75
    a, b = torch.randn(rank, width).to(dtype), torch.randn(rank, outputs).to(dtype)
    functions = library.functions

    def shrink(path: int, out: Tensor) -> None:
        functions.lorikeet_shrink(
            path, a.data_ptr(), CODES[dtype], x.data_ptr(), width, rows, width, rank, scaling, out.data_ptr(), rank
        )

    shrunk = on_all_paths(library, rows * rank, shrink).view(rows, rank)
    alone = torch.empty(rank)
    for row in range(rows):
        functions.lorikeet_shrink(
            0, a.data_ptr(), CODES[dtype], x[row].data_ptr(), width, 1, width, rank, scaling, alone.data_ptr(), rank
        )
        assert torch.equal(alone, shrunk[row])
    base = torch.randn(rows, outputs)

    def expand(path: int, out: Tensor) -> None:
        out.copy_(base.flatten())
        for row in range(rows):
            place = out[row * outputs :].data_ptr()
            h = shrunk[row].data_ptr()
            functions.lorikeet_expand(path, b.data_ptr(), CODES[dtype], outputs, outputs, rank, h, place)

    out = on_all_paths(library, rows * outputs, expand).view(rows, outputs)
    expected = base + lora_reference(x, a, b.T, scaling)
    assert torch.allclose(out, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


@pytest.mark.parametrize("num_ranks", [1, 16])
@pytest.mark.parametrize(("first", "count"), [(0, 200), (3, 64), (16, 65), (100, 1), (130, 70)])
def test_columns_of_an_expand_have_the_bits_of_the_whole(
    library: NativeLibrary, first: int, count: int, num_ranks: int
) -> None:
    b, h = torch.randn(num_ranks, 200), torch.randn(num_ranks)
    call = library.functions.lorikeet_expand
    whole = torch.zeros(200)
    call(0, b.data_ptr(), 0, 200, 200, num_ranks, h.data_ptr(), whole.data_ptr())

    def expand(path: int, out: Tensor) -> None:
        out.zero_()
        call(path, b[:, first:].data_ptr(), 0, 200, count, num_ranks, h.data_ptr(), out.data_ptr())

    assert torch.equal(on_all_paths(library, count, expand), whole[first : first + count])


class Tile(ctypes.Structure):
    """The C struct `AttentionTile` of native/rows/kernels.h."""

    _fields_ = (
        ("q", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("q_stride", "num_rows", "group", "first_position", "window")),
        ("softcap", ctypes.c_float),
        ("cache", ctypes.c_void_p),
        ("num_heads", ctypes.c_int64),
        ("head_dim", ctypes.c_int64),
        ("dtype", ctypes.c_int64),
        ("head", ctypes.c_int64),
        ("blocks", ctypes.c_void_p),
        ("num_blocks", ctypes.c_int64),
    )


class Cache:
    """One layer's cache of 12 blocks, full of numbers, in the native layout and in that of `kernels.kv_cache`."""

    def __init__(self, num_heads: int, head_dim: int, dtype: torch.dtype) -> None:
        padded = -(-head_dim // 16) * 16
        self.num_heads, self.head_dim, self.padded, self.dtype = num_heads, head_dim, padded, dtype
        self.plain = torch.randn(2, num_heads, 12 * CACHE_BLOCK, head_dim).to(dtype)
        keys, values = self.plain.view(2, num_heads, 12, CACHE_BLOCK, head_dim).transpose(1, 2)
        values = torch.nn.functional.pad(values, (0, padded - head_dim))
        self.native = torch.cat((keys.mT.flatten(2), values.flatten(2)), 2).contiguous()
        self.blocks = torch.tensor([7, 2, 11, 4, 0, 9], dtype=torch.int32)
        self.slots = (self.blocks.long()[:, None] * CACHE_BLOCK + torch.arange(CACHE_BLOCK)).flatten()

    def attend(
        self,
        library: NativeLibrary,
        path: int,
        q: Tensor,
        position: int,
        window: int,
        head: int,
        out: Tensor,
        softcap: float = 0.0,
    ) -> None:
        """Compute attention of q [rows, heads of the group, head_dim], scaled, on one path, and write it to `out`."""
        rows, group, _ = q.shape
        tile = Tile(
            q.data_ptr(), group * self.head_dim, rows, group, position, window, softcap, self.native.data_ptr(),
            self.num_heads, self.head_dim, CODES[self.dtype], head, self.blocks.data_ptr(), len(self.blocks),
        )  # fmt: skip
        library.functions.lorikeet_attend(path, ctypes.byref(tile), out.data_ptr())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("group", "head_dim"), [(1, 64), (3, 64), (4, 6), (5, 40), (2, 128), (9, 16)])
def test_attention_is_near_its_reference(library: NativeLibrary, group: int, head_dim: int, dtype: torch.dtype) -> None:
    cache = Cache(2, head_dim, dtype)
    capped = [(1, 90, 0, 2.0), (16, 70, 20, 0.5)]
    sizes = [(1, 0, 0), (1, 15, 0), (1, 16, 0), (1, 90, 0), (5, 14, 0), (16, 70, 20), (3, 40, 1)]
    for rows, position, window, softcap in [*((*size, 0.0) for size in sizes), *capped]:
        q = torch.randn(rows, 2 * group, head_dim)
        for head in (0, 1):
            mine = (q[:, head * group : (head + 1) * group] * head_dim**-0.5).contiguous()
            count = rows * group * (cache.padded + 2)

            def attend(path: int, out: Tensor, mine: Tensor = mine, head: int = head) -> None:
                cache.attend(library, path, mine, position, window, head, out, softcap)  # noqa: B023

            out = on_all_paths(library, count, attend)
            values = out[: rows * group * cache.padded].view(rows, group, cache.padded)
            assert (values[..., head_dim:] == 0).all()
            for row in range(rows):
                expected = attention_reference(
                    q[row], cache.plain.float(), cache.slots, position + row, window or None, softcap
                )[head * group : (head + 1) * group]
                assert torch.allclose(values[row, :, :head_dim], expected, rtol=1e-4, atol=1e-5)
                alone = torch.empty(group * (cache.padded + 2))
                cache.attend(library, 0, mine[row : row + 1], position + row, window, head, alone, softcap)
                assert torch.equal(alone[: group * cache.padded], values[row].flatten())


def test_what_a_position_does_not_see_changes_no_bit(library: NativeLibrary) -> None:
    cache, q = Cache(1, 64, torch.float32), torch.randn(1, 3, 64)
    before, after = torch.empty(3 * 66), torch.empty(3 * 66)
    cache.attend(library, 0, q, 37, 20, 0, before)
    keys = cache.native[:, 0, : 64 * CACHE_BLOCK].view(12, 64, CACHE_BLOCK)
    keys[11, :, 37 % 16 + 1 :] = torch.finfo(torch.float32).max / 1e6
    keys[2, :, : 18 - 16] = -1e30
    keys[7] = 1e30
    for path in range(len(library.paths)):
        cache.attend(library, path, q, 37, 20, 0, after)
        assert torch.equal(before, after)


def test_scores_of_any_size_give_weights(library: NativeLibrary) -> None:
    cache = Cache(1, 16, torch.float32)
    for factor in (1e-20, 100.0, 1e4, 1e10):
        q = torch.randn(1, 1, 16) * factor
        out = on_all_paths(library, 18, lambda path, out, q=q: cache.attend(library, path, q, 80, 0, 0, out))
        expected = attention_reference(q[0] * 4.0, cache.plain, cache.slots, 80)[0]
        assert torch.allclose(out[:16], expected, rtol=1e-3, atol=1e-3)
        assert math.isfinite(float(out[16]))
