"""Products of experts and what adapters add to them: the bits of each expert alone, and near the definition."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.cpu.decoder import dtype_number
from kernels.cpu.experts import EXPERT_FACTORS, NativeGrouped, add_expert_lora_
from kernels.cpu.library import NativeLibrary
from kernels.cpu.linear import NativeLinear
from kernels.cpu.matrix import Format, NativeMatrix
from kernels.expert_lora import expert_lora_reference
from kernels.experts import ExpertRows, route, segments, sorted_rows
from tests.kernels.cpu.test_linear import KINDS, threads

NUM_EXPERTS, WIDTH, RANKS, OUTPUTS = 6, 48, (3, 6), (300, 21)
DTYPES = [torch.float32, torch.bfloat16]


def rows_of(num_tokens: int, num_chosen: int = 2) -> ExpertRows:
    """Return rows by expert for all experts but one; the first expert gets every second token."""
    logits = torch.randn(num_tokens, NUM_EXPERTS)
    logits[::2, 0], logits[:, 3] = 9.0, -9.0
    return sorted_rows(route(logits, num_chosen, normalized=True)[1], NUM_EXPERTS)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("num_tokens", [1, 9, 150, 700])
@pytest.mark.parametrize("has_bias", [False, True])
def test_each_expert_has_the_bits_of_its_own_product(
    library: NativeLibrary, num_tokens: int, dtype: torch.dtype, kind: Format, has_bias: bool
) -> None:
    """A row of an expert depends on nothing but itself, on every path, whatever is computed beside it."""
    torch.manual_seed(num_tokens)
    matrices = [NativeMatrix.quantized(library, torch.randn(37, WIDTH), kind) for _ in range(NUM_EXPERTS)]
    bias = torch.randn(NUM_EXPERTS, 37) if has_bias else None
    rows = rows_of(num_tokens)
    x = torch.randn(len(rows.tokens), WIDTH).to(dtype)
    for path in library.paths:
        found = NativeGrouped(matrices, bias, path)(x, rows)
        for expert, first, last in segments(rows):
            alone = NativeLinear(matrices[expert], None if bias is None else bias[expert], path)
            assert torch.equal(found[first:last], alone(x[first:last])), (path, expert)


class Adapters(NamedTuple):
    """Adapters on two projections."""

    a: Tensor
    bs: tuple[Tensor, ...]
    scalings: Tensor
    factors: NDArray[np.void]
    """The addresses of the matrices."""
    sizes: tuple[int, ...]
    """The sizes of the projections' outputs."""
    alone: Tensor
    """The memory that factors point to, kept alive."""

    def add_(
        self,
        library: NativeLibrary,
        out: Tensor,
        x: Tensor,
        rows: ExpertRows,
        of_tokens: Tensor,
        path: str | None = None,
    ) -> None:
        add_expert_lora_(library, out, self.sizes, x, rows, of_tokens, self.factors, path)

    def expected(self, out: Tensor, x: Tensor, rows: ExpertRows, of_rows: Tensor) -> Tensor:
        """Return the expected content of `out`, computed by the definition."""
        expected, first_rank, column = out.float().clone(), 0, 0
        for p, b in enumerate(self.bs):
            a = self.a[:, :, first_rank : first_rank + b.shape[2]]
            delta = expert_lora_reference(x, rows, of_rows, a, b, self.scalings[:, p])
            expected[:, column : column + b.shape[3]] += delta
            first_rank, column = first_rank + b.shape[2], column + b.shape[3]
        return expected


def adapters_of(number: int, dtype: torch.dtype, sizes: tuple[int, ...] = OUTPUTS) -> Adapters:
    """Return adapters, the last of which, if there are several, has nothing on the first projection."""
    ranks = RANKS[: len(sizes)]
    a = torch.randn(number, NUM_EXPERTS, sum(ranks), WIDTH).to(dtype)
    bs = tuple(torch.randn(number, NUM_EXPERTS, r, size).to(dtype) for r, size in zip(ranks, sizes, strict=True))
    scalings = torch.rand(number, len(sizes))
    factors = np.zeros(number, dtype=EXPERT_FACTORS)
    alone = a[-1, :, ranks[0] :].contiguous()
    for g in range(number):
        is_last = 0 < g == number - 1 and len(sizes) > 1
        factors[g]["a"] = (alone if is_last else a[g]).data_ptr()
        factors[g]["dtype"] = dtype_number(dtype)
        for p in range(int(is_last), len(sizes)):
            factors[g]["bs"][p], factors[g]["ranks"][p] = bs[p][g].data_ptr(), ranks[p]
            factors[g]["scalings"][p] = float(scalings[g, p])
        if is_last:
            scalings[g, 0] = 0.0
    return Adapters(a, bs, scalings, factors, sizes, alone)


@pytest.mark.parametrize("sizes", [OUTPUTS, OUTPUTS[:1], (5000,)])
@pytest.mark.parametrize("factors", DTYPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("num_tokens", "number"), [(1, 1), (9, 3), (700, 3)])
def test_adapters_equal_the_definition(
    library: NativeLibrary,
    num_tokens: int,
    number: int,
    dtype: torch.dtype,
    factors: torch.dtype,
    sizes: tuple[int, ...],
) -> None:
    """Some tokens have no adapter. All paths and numbers of threads have one result."""
    torch.manual_seed(num_tokens)
    rows, adapters = rows_of(num_tokens), adapters_of(number, factors, sizes)
    of_tokens = (torch.arange(num_tokens) + 1) % (number + 1) - 1
    of_rows = of_tokens[rows.tokens]
    x = torch.randn(len(rows.tokens), WIDTH).to(dtype)
    before = torch.randn(len(x), sum(sizes)).to(dtype)
    results = []
    for path in library.paths:
        for num_threads in (1, 3):
            with threads(num_threads):
                out = before.clone()
                adapters.add_(library, out, x, rows, of_tokens, path)
            results.append(out)
    tolerance = 1e-4 if dtype == torch.float32 else 1e-2
    expected = adapters.expected(before, x, rows, of_rows)
    torch.testing.assert_close(results[0].float(), expected, rtol=tolerance, atol=tolerance * 10)
    assert all(torch.equal(results[0], each) for each in results)
    assert torch.equal(results[0][of_rows < 0], before[of_rows < 0])
    assert not torch.equal(results[0], before)


def test_what_an_adapter_adds_has_the_same_bits_alone_and_among_neighbors(library: NativeLibrary) -> None:
    torch.manual_seed(3)
    rows, adapters, of_tokens = rows_of(60), adapters_of(4, torch.float32), torch.randint(-1, 4, (60,))
    x, out = torch.randn(len(rows.tokens), WIDTH), torch.zeros(len(rows.tokens), sum(OUTPUTS))
    adapters.add_(library, out, x, rows, of_tokens)
    experts = torch.repeat_interleave(torch.arange(NUM_EXPERTS), rows.counts)
    for m in range(0, len(x), 7):
        counts = torch.zeros(NUM_EXPERTS, dtype=torch.int64)
        counts[experts[m]] = 1
        mine = ExpertRows(torch.zeros(1, dtype=torch.int64), torch.zeros(1, 1, dtype=torch.int64), counts)
        alone = torch.zeros(1, sum(OUTPUTS))
        adapters.add_(library, alone, x[m : m + 1], mine, of_tokens[rows.tokens[m]].view(1))
        assert torch.equal(alone[0], out[m])


def test_an_adapter_that_is_no_number_stays_among_its_own_rows(library: NativeLibrary) -> None:
    torch.manual_seed(4)
    rows, adapters, of_tokens = rows_of(20), adapters_of(3, torch.float32), torch.arange(20) % 2
    adapters.a[1] = torch.nan
    out = torch.zeros(len(rows.tokens), sum(OUTPUTS))
    adapters.add_(library, out, torch.randn(len(out), WIDTH), rows, of_tokens)
    assert out[rows.tokens % 2 == 0].isfinite().all()
    assert not out[rows.tokens % 2 == 1].isfinite().any()


def test_rows_without_adapters_stay_as_they_are(library: NativeLibrary) -> None:
    rows, adapters = rows_of(5), adapters_of(1, torch.float32)
    out = torch.ones(len(rows.tokens), sum(OUTPUTS))
    adapters.add_(library, out, torch.randn(len(out), WIDTH), rows, torch.full((5,), -1))
    assert torch.equal(out, torch.ones_like(out))
