"""The requests of the benchmark, and how it sums up their answers."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from gateway.bench.load import Distribution, Load, jobs, quantile_ms

MODELS = ["base", "base:a", "base:b", "base:c"]


def load(distribution: Distribution = "turn", *, shared: int = 0) -> Load:
    return Load(MODELS, max_tokens=8, prompt_words=12, shared_words=shared, distribution=distribution)


def test_a_seed_reproduces_a_load() -> None:
    first, again, other = (list(jobs(load("zipf"), 50, random.Random(seed))) for seed in (1, 1, 2))
    assert first == again != other


def test_prompts_differ_after_the_words_that_they_share() -> None:
    prompts = [job.prompt.split() for job in jobs(load(shared=20), 10, random.Random(0))]
    assert {len(words) for words in prompts} == {32}
    assert len({tuple(words[:20]) for words in prompts}) == 1
    assert len({tuple(words[20:]) for words in prompts}) == 10


@pytest.mark.parametrize(
    ("distribution", "expected"),
    [("turn", [250] * 4), ("uniform", [250] * 4), ("zipf", [480, 240, 160, 120])],
)
def test_models_get_their_share_of_the_requests(distribution: Distribution, expected: list[int]) -> None:
    counts = Counter(job.model for job in jobs(load(distribution), 1000, random.Random(0)))
    tolerance = 0 if distribution == "turn" else 40
    assert [counts[model] for model in MODELS] == pytest.approx(expected, abs=tolerance)


def test_a_quantile_is_a_value_that_was_measured() -> None:
    values_s = [number / 1000 for number in range(100, 0, -1)]
    assert [quantile_ms(values_s, q) for q in (0.5, 0.99, 1.0)] == [50.0, 99.0, 100.0]
    assert quantile_ms([0.007], 0.5) == 7.0
    assert quantile_ms([], 0.5) is None
