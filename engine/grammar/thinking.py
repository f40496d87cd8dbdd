"""The thinking before a grammar: the model writes what it likes, and the grammar holds what follows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engine.grammar.json_schema import Unenforceable
from engine.protocol import Thinking, ThinkingPlace
from engine.sequence import Matcher

MAX_END_TOKENS = 64


def check_thinking(thinking: Thinking, vocab_size: int) -> None:
    """Check that thinking can end, and that its tokens are in the vocabulary.

    Raises Unenforceable: when they are not.
    """
    token_ids = [token_id for run in thinking.end for token_id in run]
    if not token_ids or not all(thinking.end) or len(token_ids) > MAX_END_TOKENS:
        raise Unenforceable(f"thinking needs an end of at most {MAX_END_TOKENS} tokens, in runs that are not empty")
    if thinking.begin is not None:
        token_ids.append(thinking.begin)
    if not all(0 <= token_id < vocab_size for token_id in token_ids):
        raise Unenforceable(f"thinking has a token outside of the vocabulary of {vocab_size}")


class ThinkingMatcher:
    """A matcher (`sequence.Matcher`) that lets a completion think before its grammar begins.

    Within the thinking all tokens are allowed, and the end-of-sequence ids only if the grammar asks for nothing after
    it.
    """

    def __init__(self, grammar: Matcher, thinking: Thinking, eos_token_ids: tuple[int, ...]) -> None:
        self._grammar = grammar
        self._place = ThinkingPlace(thinking)
        self._refused = () if thinking.may_end else eos_token_ids
        """The tokens that may not come within the thinking."""

    def fill_allowed(self, bitmask: NDArray[np.int32]) -> None:
        """Set bit t of bitmask [ceil(V / 32)] where token t may come next, and clear the others."""
        bits = bitmask.view(np.uint32)
        if self._place.is_within:
            bits.fill(0xFFFFFFFF)
            for token_id in self._refused:
                bits[token_id // 32] &= np.uint32(~(1 << token_id % 32) & 0xFFFFFFFF)
            return
        self._grammar.fill_allowed(bitmask)
        if (begin := self._place.begin) is not None:
            bits[begin // 32] |= np.uint32(1 << begin % 32)

    def accept(self, token_id: int) -> None:
        """Go on by a token that was allowed.

        Raises MatcherError: when the grammar's matcher has failed.
        """
        if not self._place.push(token_id):
            self._grammar.accept(token_id)

    @property
    def is_complete(self) -> bool:
        """True when nothing but the end may follow."""
        return not self._place.is_within and self._grammar.is_complete

    @property
    def expected_cost_s(self) -> float:
        """The expected cost of the next token, in seconds: within the thinking, nothing worth counting."""
        return 0.0 if self._place.is_within else self._grammar.expected_cost_s
