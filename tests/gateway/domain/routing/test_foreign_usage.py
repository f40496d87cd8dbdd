"""The tokens billed for a foreign server's reply never exceed what was requested, and are the server's own counts where
these can be true."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.routing.foreign_usage import (
    MAX_TOKEN_BYTES,
    Evidence,
    own_completion_tokens,
    own_prompt_tokens,
    settle,
)

NUMBERS = st.integers(min_value=-(10**12), max_value=10**12)
TOLD = st.one_of(
    st.none(), st.tuples(NUMBERS, NUMBERS, NUMBERS), st.tuples(st.integers(0, 99), st.integers(0, 99), NUMBERS)
)


@st.composite
def replies(draw: st.DrawFn) -> Evidence:
    num_choices, max_tokens = draw(st.integers(1, 8)), draw(st.integers(1, 1000))
    is_exact = draw(st.booleans())
    most = num_choices * max_tokens
    prompt_tokens = draw(st.integers(1, 10_000))
    return Evidence(
        num_choices=num_choices,
        max_tokens=max_tokens,
        prompt_tokens=prompt_tokens,
        template_tokens=draw(st.integers(0, prompt_tokens)),
        is_prompt_exact=draw(st.booleans()),
        is_exact=is_exact,
        completion_tokens=draw(st.integers(0, most)) if is_exact else 0,
        text_bytes=draw(st.integers(0, MAX_TOKEN_BYTES * most)),
        num_events=draw(st.integers(0, 10_000)),
    )


@given(replies(), TOLD, NUMBERS)
def test_no_word_of_a_server_is_billed_beyond_what_it_was_asked_for(
    seen: Evidence, told: tuple[int, int, int] | None, reasoning_tokens: int
) -> None:
    found = settle(seen, told, reasoning_tokens=reasoning_tokens)
    assert 0 <= found.prompt_tokens <= seen.prompt_tokens
    assert (
        0
        <= found.completion_tokens
        <= seen.num_choices * seen.max_tokens + (8 * seen.num_choices if seen.is_exact else 0)
    )
    assert 0 <= found.cached_tokens <= found.prompt_tokens
    if not found.is_ours:
        assert told is not None
        assert found.completion_tokens == told[1]
        assert found.completion_tokens * MAX_TOKEN_BYTES >= seen.text_bytes or seen.is_exact
    else:
        assert (found.prompt_tokens, found.completion_tokens) == (own_prompt_tokens(seen), own_completion_tokens(seen))
    if seen.is_prompt_exact:
        assert found.prompt_tokens == seen.prompt_tokens


@pytest.mark.parametrize(
    ("told", "is_false"),
    [
        ((10, 5, 0), False),
        ((10, 5, 4), False),
        ((101, 5, 0), True),
        ((0, 5, 0), True),
        ((10, 0, 0), True),
        ((10, 17, 0), True),
    ],
)
def test_counts_are_held_against_what_was_seen(told: tuple[int, int, int], is_false: bool) -> None:
    seen = Evidence(
        num_choices=1,
        max_tokens=16,
        prompt_tokens=100,
        template_tokens=0,
        is_prompt_exact=False,
        is_exact=False,
        text_bytes=20,
        num_events=5,
    )
    found = settle(seen, told)
    assert found.is_false is is_false
    assert (found.prompt_tokens, found.completion_tokens) == ((25, 5) if is_false else told[:2])


@pytest.mark.parametrize(
    ("completion", "reasoning_tokens", "is_false"), [(60, 55, False), (60, 0, True), (65, 99, True)]
)
def test_reasoning_that_was_not_sent_counts_up_to_what_was_asked_for(
    completion: int, reasoning_tokens: int, is_false: bool
) -> None:
    seen = Evidence(
        num_choices=1,
        max_tokens=64,
        prompt_tokens=100,
        template_tokens=0,
        is_prompt_exact=False,
        is_exact=False,
        text_bytes=5,
        num_events=1,
    )
    assert settle(seen, (10, completion, 0), reasoning_tokens=reasoning_tokens).is_false is is_false
