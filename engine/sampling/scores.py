"""Score a text by the hidden state of its last token, for decoders that rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor


class Score(Protocol):
    """The way in which a model scores documents."""

    def __call__(self, hidden: Tensor, logits: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the score of each row: [T, hidden] -> [T, 1] fp32.

        logits: computes the decoder's logits of as many rows.
        """


class TokenScore:
    """The logit of a token that means relevant, less that of one that means the opposite, where there is one.

    yes, no: token ids; no: None: there is no opposite token.
    """

    def __init__(self, yes: int, no: int | None) -> None:
        self._yes, self._no = yes, no

    def __call__(self, hidden: Tensor, logits: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the scores of texts by hidden [T, hidden] and a function that returns the logits: [T, 1]."""
        found = logits(hidden)
        score = found[:, self._yes].clone()
        if self._no is not None:
            score -= found[:, self._no]
        return score[:, None]


class ClassifierScore:
    """The product with a row of the classifier's own. weight [1, hidden], on a CPU."""

    def __init__(self, weight: Tensor) -> None:
        self._weight = weight

    def __call__(self, hidden: Tensor, logits: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the scores of texts by hidden [T, hidden]: [T, 1] fp32. The weight moves to their device once."""
        if self._weight.device != hidden.device:
            self._weight = self._weight.to(hidden.device)
        return hidden.float() @ self._weight.float().T
