"""A row's logits become what its own options define, whatever its neighbors' options: against a plain fp64
reference."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine.protocol import GenerateRequest, SamplingParams
from engine.sampling.logits_processors import Row, process_logits_
from engine.sampling.sampler import Sampler
from engine.sequence import Sequence
from kernels.penalties import penalties_reference
from kernels.sampling import kept_probabilities_reference
from tests.kernels.test_sampling import assert_frequencies

VOCAB = 67  # no multiple of what bits or blocks are counted in
EOS = (0, 66)
TOKEN = st.integers(0, VOCAB - 1)
PARAMS = st.builds(
    SamplingParams,
    max_tokens=st.just(20),
    temperature=st.sampled_from((0.0, 0.7, 1.0)),
    min_tokens=st.integers(0, 4),
    stop_token_ids=st.sampled_from(((), (3,), (0, 5))),
    ignore_eos=st.booleans(),
    presence_penalty=st.sampled_from((0.0, -2.0, 0.5)),
    frequency_penalty=st.sampled_from((0.0, -1.0, 1.5)),
    repetition_penalty=st.sampled_from((1.0, 0.5, 1.3)),
    logit_bias=st.dictionaries(TOKEN, st.floats(-100, 100), max_size=4),
    allowed_token_ids=st.sampled_from(((), (), (5, 7, 40), EOS)),
)


class OneOf:
    """A matcher that allows one of some tokens, and after it only the end."""

    expected_cost_s = 0.0

    def __init__(self, token_ids: Iterable[int]) -> None:
        self._allowed = sorted(token_ids)

    def fill_allowed(self, bitmask: NDArray[np.int32]) -> None:
        bits = np.zeros(bitmask.size * 32, dtype=np.uint8)
        bits[self._allowed] = 1
        bitmask |= np.packbits(bits, bitorder="little").view(np.int32)

    def accept(self, token_id: int) -> None:
        assert token_id in self._allowed
        self._allowed = list(EOS)

    @property
    def is_complete(self) -> bool:
        return self._allowed == list(EOS)


class Case(msgspec.Struct, frozen=True):
    """One row of a step: its text so far, its drafts, its options, and the tokens that a grammar allows."""

    prompt: list[int]
    completion: list[int]
    drafts: tuple[int, ...]
    params: SamplingParams
    allowed: frozenset[int] | None
    """The tokens that a grammar allows; None: the row has no grammar."""

    def row(self, seed: int = 0) -> Row:
        params = self.params if self.allowed is None else msgspec.structs.replace(self.params, allowed_token_ids=())
        request = GenerateRequest("r", self.prompt, params, "t")
        sequence = Sequence(request, self.prompt + self.completion, seed, 0.0)
        if self.allowed is not None:
            sequence.matcher = OneOf(self.allowed)
        return Row(sequence, self.drafts if self.allowed is None else ())

    def reference(self, logits: torch.Tensor) -> torch.Tensor:
        p = self.params
        completion = self.completion + list(self.drafts if self.allowed is None else ())
        biased = logits.double().clone()
        for token, bias in p.logit_bias.items():
            biased[token] += bias
        expected = penalties_reference(
            biased, self.prompt, completion, p.repetition_penalty, p.frequency_penalty, p.presence_penalty
        )
        choices = set(p.allowed_token_ids or range(VOCAB)) if self.allowed is None else set(self.allowed)
        if len(completion) < p.min_tokens:
            ends = {*p.stop_token_ids, *(() if p.ignore_eos else EOS)}
            choices = choices - ends or choices
        expected[sorted(set(range(VOCAB)) - choices)] = -torch.inf
        return expected


CASES = st.builds(
    Case,
    prompt=st.lists(TOKEN, min_size=1, max_size=8),
    completion=st.lists(TOKEN, max_size=6),
    drafts=st.lists(TOKEN, max_size=3).map(tuple),
    params=PARAMS,
    allowed=st.none() | st.frozensets(TOKEN, min_size=1, max_size=5) | st.just(frozenset(EOS)),
)


@given(cases=st.lists(CASES, min_size=1, max_size=6), seed=st.integers(0, 2**31))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_every_option_of_every_row_equals_the_reference(cases: list[Case], seed: int) -> None:
    logits = torch.randn(len(cases), VOCAB, generator=torch.Generator().manual_seed(seed)) * 4
    expected = torch.stack([case.reference(row) for case, row in zip(cases, logits, strict=True)])
    greedy = Sampler(EOS).choose(logits.clone(), [case.row() for case in cases])
    process_logits_(logits, [case.row() for case in cases], EOS, torch.from_numpy)
    torch.testing.assert_close(logits.double(), expected, rtol=1e-5, atol=1e-4)
    for case, sampled, row in zip(cases, greedy, expected, strict=True):
        assert row[sampled.token_id] > -torch.inf
        if not case.params.temperature:
            assert row.max() - row[sampled.token_id] < 1e-4


def test_draws_with_every_option_follow_the_distribution() -> None:
    params = SamplingParams(
        20,
        temperature=0.9,
        top_k=40,
        top_p=0.95,
        min_p=0.002,
        presence_penalty=0.5,
        frequency_penalty=0.3,
        repetition_penalty=1.2,
        logit_bias={7: 2.0, 8: -100.0},
        min_tokens=9,
        stop_token_ids=(5,),
    )
    case = Case([1, 2, 3, 7], [9, 9, 9, 10], (), params, allowed=frozenset(range(1, 60)))
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(3)) * 2
    expected = kept_probabilities_reference(case.reference(logits), 0.9, top_k=40, top_p=0.95, min_p=0.002)
    sampled = Sampler(EOS).choose(logits.expand(10_000, -1).clone(), [case.row(seed) for seed in range(10_000)])
    assert_frequencies(torch.tensor([s.token_id for s in sampled]), expected)


def test_draws_along_one_text_follow_the_distribution() -> None:
    """With one seed, a token is drawn at each of 3,000 positions: each draw is distributed as if it were the only
    one."""
    cases = [Case([1], [2] * length, (), SamplingParams(3000), None) for length in range(3000)]
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(5)) * 2
    sampled = Sampler(EOS).choose(logits.expand(3000, -1).clone(), [case.row(seed=11) for case in cases])
    token_ids = torch.tensor([s.token_id for s in sampled])
    assert_frequencies(token_ids, logits.double().softmax(-1))
    pairs = token_ids[:-1] % 4 * 4 + token_ids[1:] % 4  # neighboring tokens, in 16 classes
    classes = torch.zeros(4, dtype=torch.float64).index_add_(0, torch.arange(VOCAB) % 4, logits.double().softmax(-1))
    assert_frequencies(pairs, torch.outer(classes, classes).flatten())


def test_a_row_without_numbers_or_choices_is_reported_and_its_neighbors_are_chosen_for() -> None:
    fine, seeded = Case([1], [], (), SamplingParams(2, temperature=0.0), None), SamplingParams(2, top_p=0.9)
    cases = [fine, fine, Case([1], [], (), seeded, None), Case([1], [], (), seeded, None), fine, fine]
    cases[4] = Case([1], [], (), SamplingParams(2, temperature=0.0), frozenset())
    logits = torch.randn(len(cases), VOCAB, generator=torch.Generator().manual_seed(4))
    best = logits.argmax(-1).tolist()
    logits[1, 3], logits[2, 3] = torch.nan, torch.inf
    sampled = Sampler(EOS).choose(logits, [case.row() for case in cases])
    assert [s.finite for s in sampled] == [True, False, False, True, False, True]
    assert [sampled[0].token_id, sampled[5].token_id] == [best[0], best[5]]
