"""Prompt lookup proposes the tokens that followed the longest recent match; a prediction proposes its own next
tokens."""

from __future__ import annotations

import random

import pytest

from engine.scheduling.drafter import MAX_AHEAD, PredictedOutput, PromptLookup


@pytest.mark.parametrize(
    ("token_ids", "expected"),
    [
        ([1, 2, 3, 4, 5, 9, 1, 2, 3], (4, 5, 9)),
        ([1, 2, 3, 7, 9, 2, 3, 8, 1, 2, 3], (7, 9, 2)),  # three tokens before two
        ([2, 3, 7, 9, 2, 3, 8, 5, 2, 3], (8, 5, 2)),  # the latest of equals
        ([5, 6, 1, 5], (6, 1, 5)),
        ([1, 2, 3, 4], ()),
        ([4], ()),
        ([4, 4], (4,)),
    ],
    ids=str,
)
def test_the_tokens_after_the_longest_latest_match_are_proposed(
    token_ids: list[int], expected: tuple[int, ...]
) -> None:
    assert PromptLookup().propose(token_ids, 3) == expected


def reference(token_ids: list[int], max_tokens: int) -> tuple[int, ...]:
    for size in (3, 2, 1):
        for end in range(len(token_ids) - 1, size - 1, -1):
            if token_ids[end - size : end] == token_ids[-size:]:
                return tuple(token_ids[end : end + max_tokens])
    return ()


def test_growing_step_by_step_proposes_what_a_search_of_the_whole_would() -> None:
    chance = random.Random(0)
    for _ in range(50):
        drafter = PromptLookup()
        token_ids = [chance.randrange(4) for _ in range(chance.randint(1, 10))]
        for _ in range(40):
            assert drafter.propose(token_ids, 4) == reference(token_ids, 4)
            token_ids += [chance.randrange(4) for _ in range(chance.randint(1, 3))]


PROMPT = [9, 9]
PREDICTION = [1, 2, 3, 4, 5, 6, 1, 2, 7]


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ([], (1, 2, 3)),
        ([1, 2], (3, 4, 5)),
        ([1, 2, 8], ()),  # parted
        ([1, 2, 8, 8], ()),
        ([1, 2, 8, 4], (5, 6, 1)),  # changed: goes on after the next token of both
        ([1, 2, 8, 3, 4], (5, 6, 1)),  # put in
        ([1, 2, 5], (6, 1, 2)),  # left out
        ([1, 2, 3, 4, 5, 6, 1], (2, 7)),
        ([1, 2, 3, 4, 5, 6, 1, 2, 7], ()),
        ([8, 1, 2], (3, 4, 5)),
    ],
    ids=str,
)
def test_a_prediction_is_followed_and_found_again(completion: list[int], expected: tuple[int, ...]) -> None:
    drafter = PredictedOutput(PREDICTION, len(PROMPT))
    assert drafter.propose([*PROMPT, *completion], 3) == expected
    stepwise = PredictedOutput(PREDICTION, len(PROMPT))
    for end in range(len(completion)):
        stepwise.propose([*PROMPT, *completion[:end]], 3)
    assert stepwise.propose([*PROMPT, *completion], 3) == expected, "however many tokens come at once"


def found_again(prediction: list[int], completion: list[int], max_tokens: int) -> tuple[int, ...]:
    """Return the next draft, found by a search of the whole prediction after each token."""
    place, agrees = 0, True
    for end, token in enumerate(completion, start=1):
        if agrees and prediction[place : place + 1] == [token]:
            place += 1
            continue
        ends = [
            after
            for size in (3, 2, 1)
            for after in range(max(size, place), len(prediction) + 1)
            if end >= size and prediction[after - size : after] == completion[end - size : end]
        ]
        agrees, place = bool(ends), ends[0] if ends else place
    return tuple(prediction[place : place + max_tokens]) if agrees else ()


def test_a_prediction_is_found_again_where_a_search_of_the_whole_would() -> None:
    chance = random.Random(0)
    for _ in range(50):
        prediction = [chance.randrange(6) for _ in range(40)]
        drafter, completion = PredictedOutput(prediction, 0), list[int]()
        for _ in range(30):
            assert drafter.propose(completion, 4) == found_again(prediction, completion, 4)
            completion += [chance.randrange(6) for _ in range(chance.randint(1, 3))]


def test_of_a_long_prediction_a_proposal_looks_at_little() -> None:
    prediction = CountedReads(range(10_000, 110_000))
    drafter = PredictedOutput(prediction, 0)
    assert drafter.propose([], 3) == (10_000, 10_001, 10_002)
    for completion in ([7], [7, 8], [7, 8, 11_000], [7, 8, 11_000, 7]):
        prediction.num_read = 0
        drafter.propose(completion, 3)
        assert prediction.num_read <= 3 * MAX_AHEAD
    assert drafter.propose([7, 8, 11_000, 7, *range(11_001, 11_100)], 3) == (11_100, 11_101, 11_102)


class CountedReads(list[int]):
    """A sequence that counts how many of its elements were read."""

    num_read = 0

    def __getitem__(self, place):
        found = super().__getitem__(place)
        self.num_read += len(found) if isinstance(place, slice) else 1
        return found

    def __iter__(self):
        raise AssertionError("all of it is read")
