"""Each draw on a GPU is the one of the definition, with the same seed and position as on a CPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.gpu.penalties import TokenPairs, penalize_, penalize_reference
from kernels.gpu.sampling import BEST, SEARCH_BLOCK, SamplingRows, sample
from kernels.sampling import kept_probabilities_reference, uniform
from tests.kernels.gpu.compare import DEVICE, randn

Parameters = tuple[float, int, float, float]

PARAMETERS: list[Parameters] = [
    (1.0, 0, 1.0, 0.0),
    (0.3, 0, 1.0, 0.0),
    (1.9, 5, 1.0, 0.0),
    (1.0, 0, 0.7, 0.0),
    (1.0, 0, 0.999, 0.0),
    (1.0, 40, 0.5, 0.0),
    (1.0, 0, 1.0, 0.1),
    (0.8, 50, 0.95, 0.02),
    (1.0, 1, 1.0, 0.0),
    (1.0, 10_000, 0.9, 0.0),
    (3.0, 0, 1e-6, 0.0),
    (1.0, 0, 1e-46, 0.0),  # 0 in fp32
    (1.0, 7, 0.0, 0.0),
    (0.05, 3, 0.3, 1.0),
]
SEEDS = [0, -1, 2**63 - 1, -(2**63), 12345]


def rows_of(parameters: list[Parameters], seeds: list[int], positions: list[int]) -> SamplingRows:
    temperature, top_k, top_p, min_p = zip(*parameters, strict=True)

    def column(values: object, dtype: torch.dtype) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=DEVICE)

    return SamplingRows(
        column(temperature, torch.float32),
        column(top_k, torch.int32),
        column(top_p, torch.float32),
        column(min_p, torch.float32),
        column(seeds, torch.int64),
        column(positions, torch.int64),
    )


@pytest.mark.parametrize(
    ("vocab_size", "ties", "spread"),
    [(1, False, 1.0), (7, True, 1.0), (600, False, 0.1), (600, True, 1.0), (600, False, 4.0), (2100, True, 4.0)],
)
def test_each_draw_is_the_one_the_definition_makes(vocab_size: int, ties: bool, spread: float) -> None:
    """The token's own share of the cumulative distribution holds u, up to rounding; some tokens are banned."""
    count = len(PARAMETERS)
    logits = randn(count, vocab_size) * spread
    logits = logits.bfloat16().float() if ties else logits
    if vocab_size > 1:
        logits[::2, vocab_size // 2 :] = -torch.inf
    seeds = [SEEDS[n % len(SEEDS)] for n in range(count)]
    positions = list(range(0, 7 * count, 7))
    drawn = sample(logits, rows_of(PARAMETERS, seeds, positions))
    for row, parameters, seed, position, token in zip(logits, PARAMETERS, seeds, positions, drawn, strict=True):
        kept = kept_probabilities_reference(row, *parameters)
        through, u = kept.cumsum(-1), uniform(seed, position)
        assert through[token] - kept[token] - 1e-4 <= u <= through[token] + 1e-4
        assert kept[token] > 0 or _is_at_the_edge(row, parameters, token)


def _is_at_the_edge(row: Tensor, parameters: Parameters, token: Tensor) -> bool:
    """Tell whether a token would be kept with top_p and min_p shifted by fp32's rounding error."""
    temperature, top_k, top_p, min_p = parameters
    return bool(kept_probabilities_reference(row, temperature, top_k, min(top_p + 1e-5, 1), min_p - 1e-6)[token] > 0)


def test_the_most_likely_tokens_may_lie_wherever_they_like() -> None:
    """There are two more of them at the same place of their blocks than a search among the best looks at; one is cut
    off."""
    count = BEST + 2
    logits = randn(8, count * SEARCH_BLOCK + 5)
    parameters: list[Parameters] = [(1.0, count - 1, 1.0, 0.0), (1.0, 0, 0.8, 0.0)] * 4
    for lane, row in enumerate(logits):
        row[lane + SEARCH_BLOCK * torch.arange(count)] = 20 + 0.1 * torch.rand(count).to(DEVICE)
    seeds = list(range(8))
    drawn = sample(logits, rows_of(parameters, seeds, seeds))
    for row, of_row, seed, token in zip(logits, parameters, seeds, drawn, strict=True):
        kept = kept_probabilities_reference(row, *of_row)
        through, u = kept.cumsum(-1), uniform(seed, seed)
        assert kept[token] > 0 and through[token] - kept[token] - 1e-4 <= u <= through[token] + 1e-4


@pytest.mark.parametrize("vocab_size", [1, 199, 5000])
def test_temperature_0_takes_the_first_of_the_most_likely(vocab_size: int) -> None:
    logits = randn(4, vocab_size).bfloat16().float()
    logits[2] = 1.0
    logits[3] = torch.arange(vocab_size) // 2
    tokens = sample(logits, rows_of([(0.0, 3, 0.5, 0.0)] * 4, [1] * 4, [1] * 4))
    firsts = [int((row == row.amax()).nonzero()[0]) for row in logits]
    assert tokens.tolist() == firsts


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # by the interpreter
def test_rows_without_a_finite_maximum_give_no_token() -> None:
    logits = randn(5, 3000)
    logits[0, 2999], logits[1, 0], logits[2], logits[3, 7] = torch.nan, torch.inf, -torch.inf, -torch.inf
    tokens = sample(logits, rows_of([(0.7, 20, 0.9, 0.0)] * 5, [1] * 5, [1] * 5))
    assert tokens[:3].tolist() == [-1, -1, -1]
    assert (tokens[3:] >= 0).all()


def test_a_row_draws_the_same_token_among_any_neighbors() -> None:
    logits = (randn(len(PARAMETERS), 300) * 2).bfloat16().float()
    seeds = list(range(len(PARAMETERS)))
    together = sample(logits, rows_of(PARAMETERS, seeds, seeds))
    for n, parameters in enumerate(PARAMETERS):
        alone = sample(logits[n : n + 1], rows_of([parameters], [n], [n]))
        assert alone.tolist() == together[n : n + 1].tolist()


@pytest.mark.parametrize("num_pairs", [0, 1, 300, 700])
def test_penalties_and_biases_equal_their_definition(num_pairs: int) -> None:
    logits = randn(7, 500)
    places = torch.randperm(7 * 500)[:num_pairs]
    rows, token_ids = (places // 500).int(), (places % 500).int()
    rows[::5] = -1
    pairs = TokenPairs(
        *(t.to(DEVICE) for t in (rows, token_ids, torch.randint(-1, 4, (num_pairs,)).int(), torch.randn(num_pairs)))
    )
    options = tuple(t.to(DEVICE) for t in (torch.rand(7) + 0.5, torch.randn(7), torch.randn(7)))
    expected = penalize_reference(logits, pairs, *options)
    penalize_(logits, pairs, *options)
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
