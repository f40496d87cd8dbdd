"""Every row gets its own adapter's delta and no other: mixed ranks, skewed popularity, overflowing neighbors."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.lora import Run, add_batched_lora_, lora_reference
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


class AdapterTable:
    """Adapters of ranks (3, 16) on two projections, in one dtype."""

    def __init__(self, num_adapters: int, dtype: torch.dtype = torch.float32) -> None:
        self.dtype = dtype
        self.a = (torch.randn(num_adapters, 19, WIDTH) / 7).to(dtype)
        self.bs = [(torch.randn(num_adapters, r, size) / 7).to(dtype) for size, r in zip(OUTS, (3, 16), strict=True)]

    def expected(self, x: Tensor, out: Tensor, adapter_of: list[int | None]) -> Tensor:
        rows = []
        for row, g in enumerate(adapter_of):
            deltas = [
                lora_reference(x[row : row + 1], a, b[g].T, 1.0) if g is not None else torch.zeros(1, b.shape[2])
                for a, b in zip(self.a[g or 0].split((3, 16)), self.bs, strict=True)
            ]
            rows.append(out[row : row + 1] + torch.cat(deltas, 1))
        return torch.cat(rows)

    def add_(self, out: Tensor, x: Tensor, spans: list[Span], places: Tensor | None, rows: Tensor | None) -> None:
        runs = [Run(take, self.a[i:j], tuple(b[i:j] for b in self.bs), None) for i, j, take in spans]
        add_batched_lora_(out.split(OUTS, 1), x, runs, places, rows, Workspace(self.dtype, x.device))


Span = tuple[int, int, Tensor | None]  # adapters [first, last) and Run.take

# Per case: the adapter of each row, the spans, places, rows.
CASES: dict[str, tuple[list[int | None], list[Span], Tensor | None, Tensor | None]] = {
    "in order": ([0, 1, 2], [(0, 3, None)], None, None),
    "shuffled": ([2, 0, 1, 0], [(0, 3, torch.tensor([1, 3, 2, 2, 0, 0]))], torch.tensor([4, 0, 2, 1]), None),
    "two spans": (
        [1, 0, 1, 1],
        [(0, 2, torch.tensor([1, 0])), (1, 2, torch.tensor([2, 3]))],
        torch.tensor([1, 0, 2, 3]),
        None,
    ),
    "many rows each": ([0] * 9 + [1] * 9, [(0, 2, None)], None, None),
    "some rows": ([None, 3, None, 4], [(3, 5, torch.tensor([1, 3]))], None, torch.tensor([1, 3])),
}


@pytest.mark.parametrize("table_dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_rows_of_many_adapters_equal_the_definition(case: str, dtype: torch.dtype, table_dtype: torch.dtype) -> None:
    """A table has the dtype of the rows or is in fp32."""
    if table_dtype != dtype != torch.bfloat16:
        pytest.skip("an fp32 engine has no other tables")
    adapter_of, spans, places, rows = CASES[case]
    table = AdapterTable(5, table_dtype)
    x, out = torch.randn(len(adapter_of), WIDTH, dtype=dtype), torch.randn(len(adapter_of), sum(OUTS), dtype=dtype)
    expected = table.expected(x, out, adapter_of)
    table.add_(out, x, spans, places, rows)
    assert_near(out, expected)


def test_an_adapter_that_overflows_leaves_no_trace_in_its_neighbors() -> None:
    table = AdapterTable(2)
    table.a[1] = torch.finfo(torch.float32).max
    x, out = torch.randn(3, WIDTH), torch.randn(3, sum(OUTS))
    expected = table.expected(x, out, [0, 1, 0])
    table.add_(out, x, [(0, 2, torch.tensor([0, 2, 1, 1]))], torch.tensor([0, 2, 1]), None)
    assert not out[1].isfinite().all()
    assert_near(out[[0, 2]], expected[[0, 2]])
