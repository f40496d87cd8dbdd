"""Where one completion stands in its grammar: which tokens may follow, and when it is whole."""

from __future__ import annotations

import time

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from engine.grammar.limits import MASK_BURST_S, MASK_PER_TOKEN_S


class GrammarFailed(Exception):
    """This completion can't be held to its grammar any longer. It ends alone: no other is touched."""


class GrammarMatcher:
    """See `sequence.Matcher`. Belongs to one completion and one thread.

    Its processor time is a bucket that every token fills a little: a grammar whose masks stay expensive ends its own
    completion (GrammarFailed) rather than slow down every step of its neighbors.
    """

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher
        self._budget_s = MASK_BURST_S

    def fill_allowed(self, bitmask: NDArray[np.int32]) -> None:
        """Set bit t of bitmask [ceil(V / 32)] where token t may come next, and clear the others.

        The end-of-sequence ids are allowed where the text may end, and nothing else once it must. Raises GrammarFailed.
        """
        started_s = time.thread_time()
        self._matcher.unsafe_compute_mask_ptr(bitmask.ctypes.data, bitmask.nbytes)
        self._pay(time.thread_time() - started_s)

    def accept(self, token_id: int) -> None:
        """Go on by a token that was allowed. Raises GrammarFailed."""
        started_s = time.thread_time()
        self._matcher.consume_token(token_id)
        self._pay(time.thread_time() - started_s)
        self._budget_s = min(MASK_BURST_S, self._budget_s + MASK_PER_TOKEN_S)

    @property
    def is_complete(self) -> bool:
        """Nothing but the end may follow."""
        return self._matcher.is_stopped()

    def _pay(self, spent_s: float) -> None:
        if self._matcher.is_error():
            raise GrammarFailed(self._matcher.get_error())
        self._budget_s -= spent_s
        if self._budget_s < 0:
            raise GrammarFailed("the grammar is too expensive to follow: too many ways to read the same text")
