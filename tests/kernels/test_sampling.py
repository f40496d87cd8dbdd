"""Sampling draws from the distribution it promises, and a row's draw depends on nothing but the row."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.sampling import kept_probabilities_reference, most_likely, sample, uniform

VOCAB = 600
PARAMETERS = [
    (1.0, 0, 1.0, 0.0),
    (0.3, 0, 1.0, 0.0),
    (1.9, 5, 1.0, 0.0),
    (1.0, 0, 0.7, 0.0),
    (1.0, 0, 0.999, 0.0),
    (1.0, 40, 0.5, 0.0),
    (1.0, 0, 1.0, 0.1),
    (0.8, 50, 0.95, 0.02),
    (1.0, 1, 1.0, 0.0),
    (1.0, VOCAB * 2, 1.0, 0.0),
]


ANY_PARAMETERS = st.tuples(
    st.floats(0.05, 3),
    st.sampled_from((0, 1, 3, 50, 256, 257, 5000, 10_000)),
    st.sampled_from((1.0, 0.999, 0.9, 0.3, 1e-6, 1e-46, 0.0)),
    st.sampled_from((0.0, 0.01, 0.3, 1.0)),
)


def draw(logits: torch.Tensor, parameters: list[tuple[float, int, float, float]], u: torch.Tensor) -> torch.Tensor:
    return sample(logits, *(torch.tensor(column) for column in zip(*parameters, strict=True)), u)


def assert_frequencies(drawn: torch.Tensor, probabilities: torch.Tensor) -> None:
    """Assert that the chi-square of the draws [N] against a distribution [V] is within 4.5 standard deviations."""
    expected = probabilities * len(drawn)
    observed = torch.bincount(drawn, minlength=len(expected)).double()
    assert not observed[expected == 0].any()
    likely = expected >= 5
    rest = expected[~likely].sum()
    statistic = ((observed - expected)[likely] ** 2 / expected[likely]).sum()
    freedom = int(likely.sum()) - 1
    if rest > 5:
        statistic += (observed[~likely].sum() - rest) ** 2 / rest
        freedom += 1
    assert statistic <= freedom + 4.5 * (2 * freedom + 1) ** 0.5


@pytest.mark.parametrize("parameters", PARAMETERS, ids=str)
def test_frequencies_match_the_distribution(parameters: tuple[float, int, float, float]) -> None:
    torch.manual_seed(1)
    logits = torch.randn(VOCAB) * 2
    u = torch.tensor([uniform(99, i) for i in range(10_000)], dtype=torch.float64)
    drawn = torch.cat([draw(logits.expand(1000, -1), [parameters] * 1000, part) for part in u.split(1000)])
    assert_frequencies(drawn, kept_probabilities_reference(logits, *parameters))


@given(
    vocab_size=st.sampled_from((1, 7, 128, 199, 600, 4096, 8192)),
    spread=st.sampled_from((0.1, 1.0, 4.0)),
    ties=st.booleans(),
    rows=st.lists(ANY_PARAMETERS, min_size=1, max_size=5),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_each_draw_is_the_one_the_definition_makes(
    vocab_size: int, spread: float, ties: bool, rows: list[tuple[float, int, float, float]], seed: int
) -> None:
    """The token's own share of the cumulative distribution holds u, up to rounding: sizes on all paths, ties too."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(rows), vocab_size, generator=generator) * spread
    logits = logits.bfloat16().float() if ties else logits
    u = torch.rand(len(rows), generator=generator, dtype=torch.float64)
    for row, parameters, target, token in zip(logits, rows, u, draw(logits, rows, u), strict=True):
        kept = kept_probabilities_reference(row, *parameters)
        through = kept.cumsum(-1)
        assert through[token] - kept[token] - 1e-4 <= target <= through[token] + 1e-4
        assert kept[token] > 0 or _is_at_the_edge(row, parameters, token)


def _is_at_the_edge(row: torch.Tensor, parameters: tuple[float, int, float, float], token: torch.Tensor) -> bool:
    """Tell whether a token would be kept with top_p and min_p shifted by fp32's rounding error."""
    temperature, top_k, top_p, min_p = parameters
    return bool(kept_probabilities_reference(row, temperature, top_k, min(top_p + 1e-5, 1), min_p - 1e-6)[token] > 0)


@pytest.mark.parametrize("vocab_size", [1, 128, 199, 49152])
def test_the_most_likely_token_is_the_maximum(vocab_size: int) -> None:
    logits = torch.randn(9, vocab_size, generator=torch.Generator().manual_seed(5)).bfloat16().float()
    logits[3, vocab_size // 2] = torch.nan
    best, token_ids = most_likely(logits)
    assert best[3].isnan()
    assert torch.equal(best[:3], logits[:3].amax(-1))
    assert torch.equal(logits.gather(1, token_ids[:, None])[:3, 0], best[:3])


def test_a_row_draws_the_same_token_among_any_neighbors() -> None:
    torch.manual_seed(2)
    logits = (torch.randn(len(PARAMETERS), VOCAB) * 2).bfloat16().float()  # bfloat16 makes ties
    for position in range(50):
        u = torch.tensor([uniform(row, position) for row in range(len(PARAMETERS))], dtype=torch.float64)
        together = draw(logits, PARAMETERS, u)
        for row, parameters in enumerate(PARAMETERS):
            assert draw(logits[row : row + 1], [parameters], u[row : row + 1]) == together[row]


def test_uniform_fills_the_unit_interval_evenly() -> None:
    values = torch.tensor([uniform(seed, position) for seed in range(100) for position in range(100)])
    counts = torch.histc(values, bins=100, min=0, max=1)
    assert ((counts - 100) ** 2 / 100).sum() < 160
    assert uniform(-(2**63), 0) != uniform(2**63 - 1, 0)


def test_banned_tokens_are_never_drawn_even_at_the_edge() -> None:
    logits = torch.tensor([[0.0, -torch.inf, 1.0, -torch.inf]]).expand(2, -1)
    edges = torch.tensor([0.0, 1 - 2.0**-53], dtype=torch.float64)
    assert draw(logits, [(1.0, 0, 1.0, 0.0)] * 2, edges).tolist() == [0, 2]
