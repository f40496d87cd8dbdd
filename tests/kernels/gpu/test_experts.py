"""Grouped products of experts equal their definition, whatever the numbers of rows of each expert."""

from __future__ import annotations

import pytest
import torch

from kernels.experts import grouped_reference
from kernels.gpu.experts import TritonGrouped, num_expert_chunks, sorted_rows
from kernels.gpu.tuning import expert_block_m
from tests.kernels.gpu.compare import DEVICE, DTYPES, assert_near, randn

# Tokens, experts, chosen ones, inputs and outputs: single rows, experts without any, several chunks of one, odd sizes.
SHAPES = [(1, 4, 1, 8, 16), (3, 16, 4, 40, 24), (40, 2, 1, 96, 130), (90, 2, 2, 72, 64), (17, 5, 3, 33, 50)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_grouped_products_equal_their_definition(shape: tuple[int, ...], has_bias: bool, dtype: torch.dtype) -> None:
    num_tokens, num_experts, num_chosen, width, height = shape
    chosen = torch.stack([torch.randperm(num_experts)[:num_chosen] for _ in range(num_tokens)]).to(DEVICE)
    rows = sorted_rows(chosen, num_experts)
    x = randn(num_tokens * num_chosen, width, dtype=dtype)
    weight = randn(num_experts, height, width, dtype=dtype)
    bias = randn(num_experts, height, dtype=dtype) if has_bias else None
    assert_near(TritonGrouped(weight, bias)(x, rows), grouped_reference(x, rows, weight, bias).to(dtype))


@pytest.mark.parametrize("counts", [[0, 0, 1], [5, 0, 40], [16, 16, 0], [0, 100, 1], [33, 3, 64]], ids=str)
def test_chunks_hold_every_row_once(counts: list[int]) -> None:
    chosen = torch.repeat_interleave(torch.arange(3), torch.tensor(counts))[:, None].to(DEVICE)
    rows = sorted_rows(chosen, 3)
    assert rows.chunks is not None
    assert len(rows.chunks) == num_expert_chunks(len(chosen), 3)
    block_m = expert_block_m(len(chosen), 3)
    seen: list[int] = []
    for expert, first, count in rows.chunks.tolist():
        assert 0 <= count <= block_m
        if count:
            start = sum(counts[:expert])
            assert start <= first and first + count <= start + counts[expert]
        seen += range(first, first + count)
    assert seen == list(range(len(chosen)))


def test_a_row_has_the_same_bits_among_others() -> None:
    """Neighbours change neither chunks' sizes nor the order of sums."""
    weight, x = randn(8, 32, 64, dtype=torch.float16), randn(12, 64, dtype=torch.float16)
    product = TritonGrouped(weight)
    alone = sorted_rows(torch.tensor([[3]], device=DEVICE), 8)
    among = sorted_rows(torch.tensor([[5], [3], *[[e % 8] for e in range(10)]], device=DEVICE), 8)
    place = int(among.places[1, 0])
    found = product(x[among.tokens], among)[place]
    assert torch.equal(found, product(x[1:2], alone)[0])
