"""Prompt lookup: what followed the longest recent match is proposed."""

from __future__ import annotations

import random

import pytest

from engine.scheduling.drafter import PromptLookup


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
