"""The place of one completion in its grammar: the tokens that may follow, and the end."""

from __future__ import annotations

import time

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from engine.grammar.limits import FIRST_TOKEN_S, MASK_BURST_S, MASK_PER_TOKEN_S
from engine.sequence import MatcherError


class GrammarMatcher:
    """A matcher (`sequence.Matcher`), which belongs to one completion and one thread.

    Its processor time is a bucket that every token fills a little: a grammar whose masks stay expensive ends its own
    completion rather than slow down every step of its neighbors.

    burst_s: the size of the bucket, in seconds.
    """

    def __init__(self, matcher: LLMatcher, eos_token_ids: tuple[int, ...], *, burst_s: float = MASK_BURST_S) -> None:
        self._matcher = matcher
        self._eos = eos_token_ids
        self._burst_s = burst_s
        self._budget_s = burst_s
        self._failure = ""
        self._spent_s = 0.0  # on the next token, so far
        self._expected_cost_s = FIRST_TOKEN_S

    def fill_allowed(self, bitmask: NDArray[np.int32]) -> None:
        """Set bit t of bitmask [ceil(V / 32)] where token t may come next, and clear the others.

        The end-of-sequence ids are allowed where the text may end, and nothing else once it must. Never raises, since a
        batch is on its way: a matcher that can't go on allows everything but the end, and `accept` says why.
        """
        started_s = time.thread_time()
        self._matcher.unsafe_compute_mask_ptr(bitmask.ctypes.data, bitmask.nbytes)
        self._pay(time.thread_time() - started_s)
        if self._failure:
            bitmask.fill(-1)
            for token_id in self._eos:
                bitmask.view(np.uint32)[token_id // 32] &= np.uint32(~(1 << token_id % 32) & 0xFFFFFFFF)

    def accept(self, token_id: int) -> None:
        """Go on by a token that was allowed.

        Raises MatcherError: when the matcher has failed.
        """
        if not self._failure:
            started_s = time.thread_time()
            self._matcher.consume_token(token_id)
            self._pay(time.thread_time() - started_s)
        if self._failure:
            raise MatcherError(self._failure)
        self._budget_s = min(self._burst_s, self._budget_s + MASK_PER_TOKEN_S)
        self._expected_cost_s, self._spent_s = self._spent_s, 0.0

    @property
    def is_complete(self) -> bool:
        """True when nothing but the end may follow."""
        return not self._failure and self._matcher.is_stopped()

    @property
    def expected_cost_s(self) -> float:
        """The expected cost of the next token, in seconds: as much as the last one took."""
        return self._expected_cost_s

    def _pay(self, spent_s: float) -> None:
        self._budget_s -= spent_s
        self._spent_s += spent_s
        if self._matcher.is_error():
            self._failure = f"the grammar can't be followed any further: {self._matcher.get_error()}"
        elif self._budget_s < 0:
            self._failure = "the grammar is too expensive to follow: there are too many ways to read the same text"
