"""How long a step takes, learned from the steps that were: a fit for each moment, and how far it can be trusted.

    seconds = a + b * rows + c * prompt tokens + d * tokens of context

Least squares over the last steps, newer ones counting more. Errors count relative to a step's length, so that a step
which something else delayed moves little. What the last steps do not tell apart stays as it was. No time, no device.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.sequence import Chunk

FORGETTING = 0.99
"""What a step counts for once the next one is there: about a hundred steps are remembered."""

ANCHOR = 1e-3
"""What keeps a coefficient where it is, as a part of the most that steps ever told about it."""

TINY = 1e-12

UNITS = np.array([1.0, 8.0, 64.0, 16384.0])
"""Of a constant, rows, prompt tokens and context, how many belong together: while nothing tells them apart, a step's
time is shared out by them."""

GROWTH = 2
FIRST_TOKENS = 16
"""A step may have GROWTH times the most rows and prompt tokens seen, or FIRST_TOKENS: what is beyond is a guess."""


class StepLoad(msgspec.Struct):
    """What one step computes. num_rows: sequences, drafts included."""

    num_rows: int = 0
    num_prompt_tokens: int = 0
    num_context_tokens: int = 0

    @classmethod
    def of(cls, decodes: Iterable[Chunk], prefills: Iterable[Chunk]) -> StepLoad:
        load = cls()
        for chunk in decodes:
            load.add_row(chunk.first + chunk.num_tokens, chunk.num_tokens)
        for chunk in prefills:
            load.add_prompt(chunk.first, chunk.num_tokens)
        return load

    def add_row(self, num_context_tokens: int, num_tokens: int = 1) -> None:
        """Add a sequence that decodes."""
        self.num_rows += num_tokens
        self.num_context_tokens += num_context_tokens

    def add_prompt(self, first: int, num_tokens: int) -> None:
        """Add a part of a prompt."""
        self.num_rows += 1
        self.num_prompt_tokens += num_tokens
        self.num_context_tokens += first + num_tokens


class StepCosts(NamedTuple):
    """The fit of a moment, in seconds."""

    base_s: float
    row_s: float
    prompt_token_s: float
    context_token_s: float

    def seconds(self, load: StepLoad) -> float:
        """Return how long a step will take."""
        return (
            self.base_s
            + self.row_s * load.num_rows
            + self.prompt_token_s * load.num_prompt_tokens
            + self.context_token_s * load.num_context_tokens
        )


class StepTime:
    """See the module. max_rows, max_prompt_tokens: the most of which the time can be told."""

    def __init__(self) -> None:
        self._coefficients = np.zeros(4)
        self._squares = np.zeros((4, 4))
        self._products = np.zeros(4)
        self._most_told = np.zeros(4)
        self._is_fitted = True
        self.max_rows = 0
        self.max_prompt_tokens = FIRST_TOKENS

    @property
    def is_known(self) -> bool:
        """Whether any step was seen."""
        return self.max_rows > 0

    def observe(self, load: StepLoad, seconds: float) -> None:
        """Learn from a step."""
        if seconds <= 0 or not load.num_rows:
            return
        features = _features(load) / seconds
        self._squares = FORGETTING * self._squares + np.outer(features, features)
        self._products = FORGETTING * self._products + features
        self._most_told = np.maximum(self._most_told, self._squares.diagonal())
        self.max_rows = max(self.max_rows, GROWTH * load.num_rows)
        self.max_prompt_tokens = max(self.max_prompt_tokens, GROWTH * load.num_prompt_tokens)
        self._is_fitted = False

    def costs(self) -> StepCosts:
        """Fit: no coefficient is below zero. Where one would be, the most negative is zero and the others are fitted
        anew."""
        if not self._is_fitted:
            anchor = ANCHOR * self._most_told + TINY
            squares = self._squares + np.diag(anchor)
            products = self._products + anchor * self._coefficients
            used = np.arange(4)
            while True:
                found = np.linalg.solve(squares[np.ix_(used, used)], products[used])
                if found.min() >= 0:
                    break
                used = np.delete(used, found.argmin())
            self._coefficients = np.zeros(4)
            self._coefficients[used] = found
            self._is_fitted = True
        return StepCosts(*(self._coefficients / UNITS).tolist())


def _features(load: StepLoad) -> NDArray[np.float64]:
    features: NDArray[np.float64] = np.array([1.0, load.num_rows, load.num_prompt_tokens, load.num_context_tokens])
    features /= UNITS
    return features
