"""Chat divides an answer into reasoning and content, alike for whole replies and streams, by whatever pieces."""

from __future__ import annotations

from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.backends.generation import Piece, Token
from gateway.openai.shared.reasoning import Divided, DividedChoice
from gateway.pipeline.collected import Answer
from gateway.text.tools.parser import CallDelta

TEXTS = st.lists(st.sampled_from(["<think>", "</think>", "<th", "</", "hm ", "4", "\n", "\n\n", " ", "é"]), max_size=12)


def joined(parts: list[Divided]) -> Divided:
    tokens = [token for part in parts for token in part.tokens]
    return Divided("".join(part.reasoning for part in parts), "".join(part.answer for part in parts), tokens)


@given(said=TEXTS, is_open=st.booleans())
def test_a_stream_and_a_whole_reply_are_divided_alike(said: list[str], is_open: bool) -> None:
    starts = [0, *accumulate(map(len, said))]
    tokens = [Token(place, start, None) for place, start in enumerate(starts[:-1])]
    streamed, whole = DividedChoice(is_open=is_open), DividedChoice(is_open=is_open)
    pieces = [Piece(0, text, [tokens[place]], num_tokens=place + 1) for place, text in enumerate(said)]
    parts = [*map(streamed.push, pieces), streamed.push(Piece(0, "", finish_reason="stop", num_tokens=len(said)))]
    steps = [(end, place + 1) for place, (_, end) in enumerate(pairwise(starts))]
    at_once = whole.whole(Answer("".join(said), tokens, "stop", steps=steps))
    assert joined(parts) == at_once
    assert streamed.num_reasoning_tokens == whole.num_reasoning_tokens <= len(said)
    if "think>" not in "".join(said) and not is_open:
        assert (at_once.reasoning, at_once.answer, at_once.tokens) == ("", "".join(said), tokens)


def test_reasoning_its_tokens_and_the_answers_log_probabilities_are_apart() -> None:
    said = ["<think>", "\n", "hm", "\n", "</think>", "\n\n", "4", "!"]
    starts = list(accumulate(map(len, said), initial=0))
    choice = DividedChoice(is_open=False)
    pieces = [Piece(0, text, [Token(at, starts[at], None)], num_tokens=at + 1) for at, text in enumerate(said)]
    whole = joined(list(map(choice.push, pieces)))
    assert (whole.reasoning, whole.answer) == ("hm", "4!")
    assert [token.token_id for token in whole.tokens] == [6, 7]
    assert choice.num_reasoning_tokens == 5


@pytest.mark.parametrize("end", [{"calls": (CallDelta(0, "f", "{}"),)}, {"finish_reason": "length"}])
def test_a_call_or_the_end_brings_what_was_held_back(end: dict[str, object]) -> None:
    choice = DividedChoice(is_open=True)
    assert joined([choice.push(Piece(0, "hm </th"))]).reasoning == "hm"
    assert choice.push(Piece(0, "", **end)).reasoning == " </th"  # type: ignore[arg-type]
