"""Sampling draws from the distribution it promises, and a row's draw depends on nothing but the row."""

from __future__ import annotations

import pytest
import torch

from kernels.sampling import kept_probabilities_reference, sample, uniform

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


def draw(logits: torch.Tensor, parameters: list[tuple[float, int, float, float]], u: torch.Tensor) -> torch.Tensor:
    return sample(logits, *(torch.tensor(column) for column in zip(*parameters, strict=True)), u)


@pytest.mark.parametrize("parameters", PARAMETERS, ids=str)
def test_frequencies_match_the_distribution(parameters: tuple[float, int, float, float]) -> None:
    """Chi-square of 20,000 draws against the reference distribution, up to 4.5 standard deviations."""
    torch.manual_seed(1)
    logits = torch.randn(VOCAB) * 2
    num_draws = 20_000
    u = torch.tensor([uniform(99, i) for i in range(num_draws)], dtype=torch.float64)
    drawn = torch.cat([draw(logits.expand(1000, -1), [parameters] * 1000, part) for part in u.split(1000)])
    expected = kept_probabilities_reference(logits, *parameters) * num_draws
    observed = torch.bincount(drawn, minlength=VOCAB).double()
    assert not observed[expected == 0].any()
    likely = expected >= 5
    rest = expected[~likely].sum()
    statistic = ((observed - expected)[likely] ** 2 / expected[likely]).sum()
    freedom = int(likely.sum()) - 1
    if rest > 5:
        statistic += (observed[~likely].sum() - rest) ** 2 / rest
        freedom += 1
    assert statistic <= freedom + 4.5 * (2 * freedom + 1) ** 0.5


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
