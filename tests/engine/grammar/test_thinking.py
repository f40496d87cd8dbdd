"""A completion thinks before its grammar begins: as long as it likes, and never to its end."""

from __future__ import annotations

from itertools import chain, product

import numpy as np
import pytest

from engine.grammar.json_schema import Unenforceable
from engine.grammar.thinking import ThinkingMatcher, check_thinking
from engine.protocol import Grammar, Thinking, ThinkingPlace
from engine.sequence import Matcher
from tests.engine.grammar.grammars import EOS, VOCAB_SIZE, allowed_ids, matchers, vocabulary
from tests.engine.grammar.test_compiler import Compiling
from tests.engine.grammar.test_compiler import compiling as compiling

BEGIN, CHANNEL, FINAL, MESSAGE = 4, 5, 6, 7
OPENED = Thinking(end=((CHANNEL, FINAL), (MESSAGE,)))
YES_OR_NO = Grammar("choice", '["yes", "no"]')
ANYTHING = sorted(set(range(VOCAB_SIZE)) - set(EOS))


def thinking_matcher(thinking: Thinking) -> Matcher:
    return ThinkingMatcher(matchers(YES_OR_NO)(), thinking, EOS)


def allowed(matcher: Matcher) -> list[int]:
    return [int(token_id) for token_id in allowed_ids(matcher) if token_id < VOCAB_SIZE]


def tokens(text: str) -> list[int]:
    return list(vocabulary().tokenize_bytes(text.encode()))


def test_thinking_that_the_prompt_began_is_free_up_to_its_end_and_the_grammar_holds_the_rest() -> None:
    matcher = thinking_matcher(OPENED)
    for token_id in [*tokens("no, or yes?"), CHANNEL, MESSAGE, FINAL, CHANNEL, CHANNEL, FINAL, *tokens(" <x>")]:
        assert allowed(matcher) == ANYTHING
        assert not matcher.is_complete and not matcher.expected_cost_s
        matcher.accept(token_id)
    matcher.accept(MESSAGE)
    assert allowed(matcher) == allowed(matchers(YES_OR_NO)())
    for token_id in tokens("yes"):
        matcher.accept(token_id)
    assert matcher.is_complete


def test_a_completion_may_end_within_thinking_where_nothing_has_to_follow() -> None:
    matcher = thinking_matcher(Thinking(end=((CHANNEL,),), may_end=True))
    assert allowed(matcher) == list(range(VOCAB_SIZE))
    matcher.accept(CHANNEL)
    assert not set(EOS) & set(allowed(matcher))


def test_the_first_token_decides_whether_there_is_thinking() -> None:
    thinking = Thinking(end=((CHANNEL,),), begin=BEGIN)
    plain = allowed(matchers(YES_OR_NO)())
    thinks, answers = thinking_matcher(thinking), thinking_matcher(thinking)
    assert allowed(thinks) == sorted([*plain, BEGIN])
    thinks.accept(BEGIN)
    assert allowed(thinks) == ANYTHING
    thinks.accept(CHANNEL)
    assert allowed(thinks) == plain, "it thinks no second time"
    first, *rest = tokens("no")
    answers.accept(first)
    assert BEGIN not in allowed(answers)
    for token_id in rest:
        answers.accept(token_id)
    assert answers.is_complete


def test_the_end_is_found_wherever_its_runs_come_in_order() -> None:
    ends = ((1,), (1, 1, 2), (3, 1, 3, 2))
    for written in product((1, 2, 3), repeat=9):
        place, expected = ThinkingPlace(Thinking(end=ends)), _end_of(written, ends)
        belongs = [place.push(token_id) for token_id in written]
        assert belongs == [index <= expected for index in range(len(written))], written
        assert place.is_within == (expected >= len(written)), written


def _end_of(written: tuple[int, ...], ends: tuple[tuple[int, ...], ...]) -> int:
    """Return the index of the last token of the last run; the number of tokens where a run does not come."""
    at = 0
    for run in ends:
        places = range(at, len(written) - len(run) + 1)
        found = next((place for place in places if written[place : place + len(run)] == run), None)
        if found is None:
            return len(written)
        at = found + len(run)
    return at - 1


@pytest.mark.parametrize(
    "thinking",
    [
        Thinking(end=()),
        Thinking(end=((1,), ())),
        Thinking(end=((VOCAB_SIZE,),)),
        Thinking(end=((-1,),)),
        Thinking(end=((1,),), begin=VOCAB_SIZE),
        Thinking(end=(tuple(range(65)),)),
    ],
)
def test_thinking_that_cannot_end_or_has_no_such_tokens_is_refused(compiling: Compiling, thinking: Thinking) -> None:
    with pytest.raises(Unenforceable, match="thinking"):
        check_thinking(thinking, VOCAB_SIZE)
    refused = compiling.ask(Grammar("json_object", thinking=thinking))
    assert refused.error is not None and refused.error.code == "invalid_request"
    assert "thinking" in refused.error.message


def test_a_compiled_grammar_thinks_where_its_request_does(compiling: Compiling) -> None:
    both = [compiling.ask(grammar) for grammar in (YES_OR_NO, Grammar("choice", YES_OR_NO.source, OPENED))]
    plain, thinking = (each.make_matcher for each in both)
    assert plain is not None and thinking is not None
    assert allowed(plain()) == allowed(matchers(YES_OR_NO)())
    choices = [thinking(), thinking()]
    for token_id in chain(*OPENED.end):
        choices[0].accept(token_id)
    assert allowed(choices[0]) == allowed(plain())
    assert allowed(choices[1]) == ANYTHING, "each choice has a place of its own"


def test_bits_beyond_the_vocabulary_stay_as_a_grammar_sets_them_once_it_holds() -> None:
    matcher = thinking_matcher(Thinking(end=((CHANNEL,),)))
    matcher.accept(CHANNEL)
    mask = np.zeros((VOCAB_SIZE + 31) // 32, np.int32)
    matcher.fill_allowed(mask)
    expected = np.zeros_like(mask)
    matchers(YES_OR_NO)().fill_allowed(expected)
    assert np.array_equal(mask, expected)
