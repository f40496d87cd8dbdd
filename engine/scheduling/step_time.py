"""The time that a step takes, learned from past steps: a fit for each moment, and how far it can be trusted.

    seconds = a + b * rows + c * prompt tokens + d * tokens of context

Least squares over the last steps, newer ones counting more. Errors count relative to a step's length, so that a step
which something else delayed moves little. A coefficient that the last steps do not determine stays as it was. Reads
no clock, and knows no device.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.scheduling.limits import BatchLimits
from engine.sequence import Chunk

FORGETTING = 0.99
"""The factor by which a step counts less with each later one: about a hundred steps are remembered."""

ANCHOR = 1e-3
"""The weight of a coefficient's last value in the fit, as a share of the most that past steps have told about it."""

TINY = 1e-12

UNITS = np.array([1.0, 8.0, 64.0, 16384.0])
"""The ratio of the four amounts (constant, rows, prompt tokens, context) by which a step's time is divided among them
while past steps do not tell them apart."""

GROWTH = 2
FIRST_TOKENS = 16
"""Rows and prompt tokens that a step may have at first; later GROWTH times the most seen.

The predicted time of larger steps is a guess.
"""


class StepLoad(msgspec.Struct):
    """The amounts that one step computes."""

    num_rows: int = 0
    """The number of sequences, plus the number of drafts."""
    num_prompt_tokens: int = 0
    """The number of prompt tokens."""
    num_context_tokens: int = 0
    """The number of tokens that sequences attend to, summed over all sequences."""

    @classmethod
    def of(cls, decodes: Iterable[Chunk], prefills: Iterable[Chunk]) -> StepLoad:
        """Return the load of a step that computes these chunks."""
        load = cls()
        for chunk in decodes:
            load.add_row(chunk.first + chunk.num_tokens, chunk.num_tokens)
        for chunk in prefills:
            load.add_prompt(chunk.first, chunk.num_tokens)
        return load

    def add_row(self, num_context_tokens: int, num_tokens: int = 1) -> None:
        """Add a sequence that decodes.

        num_context_tokens: the tokens of the sequence. num_tokens: the rows of the step for
        this sequence: one, and one for each draft.
        """
        self.num_rows += num_tokens
        self.num_context_tokens += num_context_tokens

    def add_prompt(self, first: int, num_tokens: int) -> None:
        """Add a part of a prompt. first: the position of its first token. num_tokens: the tokens that are computed."""
        self.num_rows += 1
        self.num_prompt_tokens += num_tokens
        self.num_context_tokens += first + num_tokens


class StepCosts(NamedTuple):
    """The coefficients of the fit of step times at one moment, in seconds."""

    base_s: float
    """Seconds that a step takes whatever it computes."""
    row_s: float
    """Seconds that each sequence, and each draft, adds."""
    prompt_token_s: float
    """Seconds that each prompt token adds."""
    context_token_s: float
    """Seconds that each token adds which a sequence attends to."""

    def seconds(self, load: StepLoad) -> float:
        """Return how long a step will take."""
        return (
            self.base_s
            + self.row_s * load.num_rows
            + self.prompt_token_s * load.num_prompt_tokens
            + self.context_token_s * load.num_context_tokens
        )


class StepTime:
    """Predicts the time of steps. max_rows, max_prompt_tokens: the largest step whose time can be predicted."""

    def __init__(self) -> None:
        self._coefficients = np.zeros(4)
        self._squares = np.zeros((4, 4))
        self._products = np.zeros(4)
        self._most_information = np.zeros(4)
        self._is_fitted = True
        self.max_rows = 0
        self.max_prompt_tokens = FIRST_TOKENS

    @property
    def is_known(self) -> bool:
        """Tell whether any step was seen."""
        return self.max_rows > 0

    def observe(self, load: StepLoad, seconds: float) -> None:
        """Learn from a step of this load and this time."""
        if seconds <= 0 or not load.num_rows:
            return
        features = _features(load) / seconds
        self._squares = FORGETTING * self._squares + np.outer(features, features)
        self._products = FORGETTING * self._products + features
        self._most_information = np.maximum(self._most_information, self._squares.diagonal())
        self.max_rows = max(self.max_rows, GROWTH * load.num_rows)
        self.max_prompt_tokens = max(self.max_prompt_tokens, GROWTH * load.num_prompt_tokens)
        self._is_fitted = False

    def costs(self) -> StepCosts:
        """Fit the costs of a step: no coefficient is below zero.

        If a coefficient would be below zero, the most negative one is set to zero and the others are fitted again.
        """
        if not self._is_fitted:
            anchor = ANCHOR * self._most_information + TINY
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


def longest_alone_s(costs: StepCosts, limits: BatchLimits, max_num_seqs: int) -> float:
    """Return how long a step of batch work alone may be, in seconds.

    Each step costs base_s whatever it computes, so a step of t seconds does 1 - base_s / t of what the device could.
    The efficiency to reach is a part of that of the step with all sequences: if base_s is long, this takes long steps.

    max_num_seqs: the most sequences of a step.
    """
    best = 1 - costs.base_s / max(costs.seconds(StepLoad(max_num_seqs)), TINY)
    efficient_s = costs.base_s / (1 - limits.efficiency * best) if limits.efficiency else 0.0
    return max(limits.step_s, min(efficient_s, limits.num_one_row_steps * costs.seconds(StepLoad(1))))


class StepRoom:
    """The room that one step has left for batch work.

    Beside interactive requests a step is lengthened by a share, alone it has a bound. A first row always fits alone, so
    that work gets on however slow the device is. Beside others nothing fits before any step was seen.
    """

    def __init__(self, step_time: StepTime, load: StepLoad, limits: BatchLimits, max_num_seqs: int) -> None:
        """Set up the room of a step. Everything that is added to the step takes up room.

        load: the interactive requests in the step. max_num_seqs: the most sequences of a step.
        """
        self._costs = costs = step_time.costs()
        self._max_rows = step_time.max_rows
        self._max_prompt_tokens = step_time.max_prompt_tokens
        self._load = load
        self._is_alone = not load.num_rows
        if self._is_alone:
            self._limit_s = longest_alone_s(costs, limits, max_num_seqs)
        else:
            self._limit_s = (1 + limits.lengthening) * costs.seconds(load) if step_time.is_known else 0.0

    def takes_row(self, num_context_tokens: int) -> bool:
        """Tell whether one more sequence may decode.

        num_context_tokens: the tokens of the sequence.
        """
        if self._is_first:
            return True
        costs = self._costs
        added_s = costs.row_s + costs.context_token_s * num_context_tokens
        return self._load.num_rows < self._max_rows and costs.seconds(self._load) + added_s <= self._limit_s

    def num_prompt_tokens(self, first: int) -> int:
        """Return how many tokens of a prompt may be computed from position first on."""
        costs, load = self._costs, self._load
        most = self._max_prompt_tokens - load.num_prompt_tokens
        left_s = self._limit_s - costs.seconds(load) - costs.row_s - costs.context_token_s * first
        token_s = costs.prompt_token_s + costs.context_token_s
        if token_s > 0:
            most = min(most, int(left_s / token_s))
        elif left_s < 0:
            most = 0
        return max(most, FIRST_TOKENS) if self._is_first else max(most, 0)

    @property
    def _is_first(self) -> bool:
        return self._is_alone and not self._load.num_rows
