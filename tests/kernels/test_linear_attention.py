"""Linear attention over parts of a text, and over one token at a time, equals its definition."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.linear_attention import (
    CHUNK,
    causal_conv,
    causal_conv_reference,
    decayed_sum,
    decayed_sum_reference,
    decayed_sum_step,
    gated_delta,
    gated_delta_reference,
    gated_delta_step,
)

LENGTHS = (1, 2, 7, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 3 * CHUNK + 5)
HEADS = ((2, 2), (2, 6), (1, 5))


def inputs(num_tokens: int, key_heads: int, heads: int) -> tuple[Tensor, ...]:
    """Return random queries, keys, values, decays, betas and a state; some decays are total, some nil."""
    torch.manual_seed(num_tokens + heads)
    q, k = (torch.nn.functional.normalize(torch.randn(num_tokens, key_heads, 12), dim=-1) for _ in range(2))
    v, state = torch.randn(num_tokens, heads, 10), torch.randn(heads, 12, 10)
    decay = -torch.rand(num_tokens, heads) * 10 ** torch.randint(-3, 2, (num_tokens, heads))
    return q, k, v, decay, torch.rand(num_tokens, heads), state


@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("num_tokens", LENGTHS)
def test_parts_of_a_text_equal_token_by_token(num_tokens: int, heads: tuple[int, int]) -> None:
    q, k, v, decay, beta, state = inputs(num_tokens, *heads)
    before = state.clone()
    for ours, theirs in (
        (decayed_sum(q, k, v, decay, state), decayed_sum_reference(q, k, v, decay, state)),
        (gated_delta(q, k, v, decay, beta, state), gated_delta_reference(q, k, v, decay, beta, state)),
    ):
        torch.testing.assert_close(ours, theirs, atol=5e-5, rtol=5e-5)
    assert torch.equal(state, before)


@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_a_step_of_many_sequences_is_that_of_each_alone(heads: tuple[int, int]) -> None:
    q, k, v, decay, beta, _ = inputs(5, *heads)
    states = torch.randn(5, heads[1], 12, 10)
    for is_delta in (False, True):
        ours = states.clone()
        out = gated_delta_step(q, k, v, decay, beta, ours) if is_delta else decayed_sum_step(q, k, v, decay, ours)
        for i in range(5):
            row = slice(i, i + 1)
            given = q[row], k[row], v[row], decay[row]
            expected, state = (
                gated_delta_reference(*given, beta[row], states[i])
                if is_delta
                else decayed_sum_reference(*given, states[i])
            )
            torch.testing.assert_close(out[row], expected)
            torch.testing.assert_close(ours[i], state)


@pytest.mark.parametrize("has_bias", [False, True])
def test_a_convolution_goes_on_from_the_rows_before(has_bias: bool) -> None:
    torch.manual_seed(1)
    x, tail, weight = torch.randn(9, 6), torch.randn(3, 6), torch.randn(4, 6)
    bias = torch.randn(6) if has_bias else None
    expected = causal_conv_reference(x, tail, weight, bias)
    torch.testing.assert_close(causal_conv(x, tail, weight, bias), expected)
    for cut in (1, 2, 5):
        rest = causal_conv(x[cut:], torch.cat((tail, x[:cut]))[-3:], weight, bias)
        torch.testing.assert_close(rest, expected[cut:])
    rows = causal_conv(x[:, None], torch.stack([torch.cat((tail, x))[t : t + 3] for t in range(9)]), weight, bias)
    torch.testing.assert_close(rows[:, 0], expected)
