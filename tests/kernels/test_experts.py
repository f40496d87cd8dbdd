"""Routing, rows by expert, grouped products and the bounded gate of experts equal their definitions."""

from __future__ import annotations

import pytest
import torch

from kernels import expert_lora
from kernels.activation import clamped_mul, clamped_mul_reference
from kernels.experts import GroupedLinear, grouped_reference, route, segments, sorted_rows, weighted_sum


@pytest.mark.parametrize("num_chosen", [1, 3, 8])
@pytest.mark.parametrize("normalized", [False, True])
def test_shares_are_those_of_a_softmax(num_chosen: int, normalized: bool) -> None:
    torch.manual_seed(num_chosen)
    logits = torch.randn(17, 8) * 4
    shares, chosen = route(logits, num_chosen, normalized=normalized)
    expected = logits.softmax(-1).gather(1, chosen)
    if normalized:
        expected = expected / expected.sum(-1, keepdim=True)
    torch.testing.assert_close(shares, expected, rtol=1e-5, atol=1e-7)
    assert torch.equal(chosen, logits.topk(num_chosen).indices)


@pytest.mark.parametrize(("num_tokens", "num_experts", "num_chosen"), [(1, 4, 2), (9, 4, 4), (40, 16, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("has_bias", [False, True])
def test_experts_equal_the_definition(
    num_tokens: int, num_experts: int, num_chosen: int, dtype: torch.dtype, has_bias: bool
) -> None:
    torch.manual_seed(num_tokens)
    shares, chosen = route(torch.randn(num_tokens, num_experts), num_chosen, normalized=True)
    rows = sorted_rows(chosen, num_experts)
    assert [count for _, first, last in segments(rows) for count in [last - first]] == [
        count for count in rows.counts.tolist() if count
    ]
    x = torch.randn(num_tokens, 24, dtype=dtype)
    weight = torch.randn(num_experts, 10, 24, dtype=dtype)
    bias = torch.randn(num_experts, 10, dtype=dtype) if has_bias else None
    product = GroupedLinear(weight, bias)(x[rows.tokens], rows)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    reference = grouped_reference(x[rows.tokens], rows, weight, bias)
    torch.testing.assert_close(product.float(), reference, rtol=tolerance, atol=tolerance * 10)
    expected = torch.zeros(num_tokens, 10)
    for n in range(num_tokens):
        for k in range(num_chosen):
            out = weight[chosen[n, k]].float() @ x[n].float()
            expected[n] += shares[n, k] * (out if bias is None else out + bias[chosen[n, k]].float())
    found = weighted_sum(product, rows, shares).float()
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance * 10)


def test_rows_of_one_expert_are_in_the_order_of_tokens() -> None:
    rows = sorted_rows(torch.tensor([[2, 0], [0, 1], [2, 1]]), 4)
    assert rows.tokens.tolist() == [0, 1, 1, 2, 0, 2]
    assert rows.places.tolist() == [[4, 0], [1, 2], [5, 3]]
    assert rows.counts.tolist() == [2, 2, 2, 0]
    assert segments(rows) == [(0, 0, 2), (1, 2, 4), (2, 4, 6)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_bounded_gate_equals_its_definition(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    gate_up = (torch.randn(7, 20) * 6).to(dtype)
    expected = clamped_mul_reference(gate_up, 1.702, 7.0)
    tolerance = 1e-6 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(clamped_mul(gate_up, 1.702, 7.0), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_adapters_on_experts_equal_the_definition(dtype: torch.dtype) -> None:
    """There are two projections with two ranks; one adapter has both of them, one has the second alone, and one has
    none."""
    torch.manual_seed(2)
    shares, chosen = route(torch.randn(11, 4), 2, normalized=True)
    rows = sorted_rows(chosen, 4)
    adapters = (torch.arange(11) % 4 - 1)[rows.tokens]
    a = torch.randn(3, 4, 5, 24, dtype=dtype)
    bs = torch.randn(3, 4, 3, 10, dtype=dtype), torch.randn(3, 4, 2, 6, dtype=dtype)
    both = expert_lora.ExpertFactors((0, 1), a[0], (bs[0][0], bs[1][0]), (0.5, 2.0))
    second = expert_lora.ExpertFactors((1,), a[1, :, 3:], (bs[1][1],), (3.0,))
    x, out = torch.randn(22, 24, dtype=dtype), torch.randn(22, 16, dtype=dtype)
    expected = out.float()
    scalings = torch.tensor([[0.5, 2.0], [0.0, 3.0], [0.0, 0.0]])
    for p, (first, ranks) in enumerate(((0, slice(0, 3)), (10, slice(3, 5)))):
        delta = expert_lora.expert_lora_reference(x, rows, adapters, a[:, :, ranks], bs[p], scalings[:, p])
        expected[:, first : first + delta.shape[1]] += delta
    before = out.clone()
    segments = expert_lora.expert_segments(rows, adapters)
    expert_lora.add_expert_lora_(torch.split(out, [10, 6], 1), x, segments, [both, second, None])
    tolerance = 1e-5 if dtype == torch.float32 else 0.1
    torch.testing.assert_close(out.float(), expected, rtol=tolerance, atol=tolerance * 10)
    assert torch.equal(out[adapters < 0], before[adapters < 0])
    assert torch.equal(out[adapters == 2], before[adapters == 2])
    assert shares.shape == (11, 2)
