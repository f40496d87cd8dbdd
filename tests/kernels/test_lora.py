"""Every row gets its own adapter's delta and nothing else's: mixed ranks, skewed popularity, overflowing neighbors."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.lora import Run, add_batched_lora_, add_lora_, lora_reference
from kernels.workspace import Workspace

DTYPES = [torch.float32, torch.bfloat16]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
WIDTH, OUTS = 48, (40, 24)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def assert_near(ours: Tensor, theirs: Tensor) -> None:
    tolerance = TOLERANCE[ours.dtype]
    torch.testing.assert_close(ours.float(), theirs.float(), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("ranks", [(1, 8), (16, 16), (128, 3)], ids=str)
@pytest.mark.parametrize("tokens", [1, 33])
def test_rows_of_one_adapter(tokens: int, ranks: tuple[int, ...], dtype: torch.dtype) -> None:
    x, out = torch.randn(tokens, WIDTH, dtype=dtype), torch.randn(tokens, sum(OUTS), dtype=dtype)
    as_ = [torch.randn(rank, WIDTH, dtype=dtype) / 7 for rank in ranks]
    bs = [torch.randn(size, rank, dtype=dtype) / 7 for size, rank in zip(OUTS, ranks, strict=True)]
    scalings = (1.5, 16 / 128**0.5)
    deltas = [lora_reference(x, *abs_) for abs_ in zip(as_, bs, scalings, strict=True)]
    expected = out + torch.cat(deltas, 1)
    add_lora_(out.split(OUTS, 1), x, torch.cat(as_), [b.T for b in bs], scalings)
    assert_near(out, expected)


class Table:
    """Adapters of ranks (3, 16) on two projections, and where the rows of each lie."""

    def __init__(self, num_adapters: int) -> None:
        self.a = torch.randn(num_adapters, 19, WIDTH) / 7
        self.bs = [torch.randn(num_adapters, r, size) / 7 for size, r in zip(OUTS, (3, 16), strict=True)]

    def expected(self, x: Tensor, out: Tensor, adapter_of: list[int | None]) -> Tensor:
        rows = []
        for row, g in enumerate(adapter_of):
            deltas = [
                lora_reference(x[row : row + 1], a, b[g].T, 1.0) if g is not None else torch.zeros(1, b.shape[2])
                for a, b in zip(self.a[g or 0].split((3, 16)), self.bs, strict=True)
            ]
            rows.append(out[row : row + 1] + torch.cat(deltas, 1))
        return torch.cat(rows)

    def add_(self, out: Tensor, x: Tensor, runs: list[Run], places: Tensor | None, rows: Tensor | None) -> None:
        scratch = Workspace(torch.float32, x.device)
        add_batched_lora_(out.split(OUTS, 1), x, self.a, self.bs, runs, places, rows, scratch)


# Per case: the adapter of each row, the runs (first, last, take), places, rows.
CASES = {
    "in order": ([0, 1, 2], [Run(0, 3, None)], None, None),
    "shuffled": ([2, 0, 1, 0], [Run(0, 3, torch.tensor([1, 3, 2, 2, 0, 0]))], torch.tensor([4, 0, 2, 1]), None),
    "two runs": (
        [1, 0, 1, 1],
        [Run(0, 2, torch.tensor([1, 0])), Run(1, 2, torch.tensor([2, 3]))],
        torch.tensor([1, 0, 2, 3]),
        None,
    ),
    "many rows each": ([0] * 9 + [1] * 9, [Run(0, 2, None)], None, None),
    "some rows": ([None, 3, None, 4], [Run(3, 5, torch.tensor([1, 3]))], None, torch.tensor([1, 3])),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_rows_of_many_adapters(case: str, dtype: torch.dtype) -> None:
    adapter_of, runs, places, rows = CASES[case]
    table = Table(5)
    x, out = torch.randn(len(adapter_of), WIDTH, dtype=dtype), torch.randn(len(adapter_of), sum(OUTS), dtype=dtype)
    expected = table.expected(x, out, adapter_of)
    table.add_(out, x, runs, places, rows)
    assert_near(out, expected)


def test_an_adapter_that_overflows_leaves_no_trace_in_its_neighbors() -> None:
    table = Table(2)
    table.a[1] = torch.finfo(torch.float32).max
    x, out = torch.randn(3, WIDTH), torch.randn(3, sum(OUTS))
    expected = table.expected(x, out, [0, 1, 0])
    run = Run(0, 2, torch.tensor([0, 2, 1, 1]))
    table.add_(out, x, [run], torch.tensor([0, 2, 1]), None)
    assert not out[1].isfinite().all()
    assert_near(out[[0, 2]], expected[[0, 2]])
