"""The changes that requests make in their rows of logits before a token is chosen.

Rows that ask for nothing cost nothing.

In this order: logit_bias; the penalties (`kernels.penalties`: repetition, then frequency and presence); the bitmask of
the grammar, or of the tokens that are allowed; before min_tokens, the ban of the tokens that end a sequence. A ban sets
-inf, which nothing raises again. A bitmask outranks min_tokens: where only an end may follow, it stays allowed.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.protocol import SamplingParams
from engine.sequence import Sequence
from kernels.penalties import occurring, penalize_repetition_


class Row(msgspec.Struct, frozen=True):
    """A token to choose: the one that follows the sequence's tokens and then `drafts`, guesses taken as right."""

    sequence: Sequence
    drafts: tuple[int, ...] = ()

    @property
    def params(self) -> SamplingParams:
        """The sampling parameters of the row's request."""
        return self.sequence.request.sampling

    @property
    def position(self) -> int:
        """The position of the token to choose, in its text."""
        return self.sequence.length + len(self.drafts)

    @property
    def token_ids(self) -> list[int]:
        """The tokens before the one to choose, if all are known."""
        return [*self.sequence.token_ids, *self.drafts]

    @property
    def completion(self) -> list[int]:
        """The tokens before the one to choose that are not the prompt's."""
        return [*self.sequence.token_ids[self.sequence.num_prompt_tokens :], *self.drafts]

    def banned(self, eos_token_ids: Many[int]) -> list[int]:
        """Return the tokens that cannot be chosen: before min_tokens, the model's end and the stop ids."""
        params = self.params
        if self.position - self.sequence.num_prompt_tokens >= params.min_tokens:
            return []
        return [*params.stop_token_ids, *(() if params.ignore_eos else eos_token_ids)]


Put = Callable[[NDArray[Any]], Tensor]
Adjust = Callable[[Tensor, Many[Row], Put], None]


def process_logits_(
    logits: Tensor, rows: Many[Row], eos_token_ids: Many[int], put: Put, adjust: Adjust | None = None
) -> None:
    """Process logits [N, V] fp32 in place, one row per element of rows.

    put: `Transfers.put` of their device. adjust: takes the place of `adjust_`.
    """
    (adjust or adjust_)(logits, rows, put)
    params = [row.params for row in rows]
    masked = [i for i, p in enumerate(params) if p.allowed_token_ids or rows[i].sequence.matcher is not None]
    early = [i for i, p in enumerate(params) if p.min_tokens and i not in masked]
    if masked:
        _keep_allowed_(logits, masked, rows, eos_token_ids, put)
    if early:
        _ban_ends_(logits, early, rows, eos_token_ids, put)


def adjust_(logits: Tensor, rows: Many[Row], put: Put) -> None:
    """Apply logit_bias and the penalties, in place."""
    params = [row.params for row in rows]
    biased = [i for i, p in enumerate(params) if p.logit_bias]
    repeating = [i for i, p in enumerate(params) if p.repetition_penalty != 1.0]
    counted = [i for i, p in enumerate(params) if p.frequency_penalty or p.presence_penalty]
    if biased:
        _add_bias_(logits, biased, rows, put)
    if repeating:
        _penalize_repetition_(logits, repeating, rows, put)
    if counted:
        _penalize_counts_(logits, counted, rows, put)


def _add_bias_(logits: Tensor, indexes: Many[int], rows: Many[Row], put: Put) -> None:
    terms = [(i, token, bias) for i in indexes for token, bias in rows[i].params.logit_bias.items()]
    at, token_ids, biases = zip(*terms, strict=True)
    _add_(logits, np.array(at), np.array(token_ids), np.array(biases), put)


def _penalize_repetition_(logits: Tensor, indexes: Many[int], rows: Many[Row], put: Put) -> None:
    text, token_ids, _ = occurring([rows[i].token_ids for i in indexes], logits.shape[1])
    penalties = np.array([rows[i].params.repetition_penalty for i in indexes], dtype=np.float32)
    at = np.array(indexes)[text]
    penalize_repetition_(logits, put(at), put(token_ids), put(penalties[text]))


def _penalize_counts_(logits: Tensor, indexes: Many[int], rows: Many[Row], put: Put) -> None:
    text, token_ids, counts = occurring([rows[i].completion for i in indexes], logits.shape[1])
    frequency = np.array([rows[i].params.frequency_penalty for i in indexes])
    presence = np.array([rows[i].params.presence_penalty for i in indexes])
    _add_(logits, np.array(indexes)[text], token_ids, -(frequency[text] * counts + presence[text]), put)


def _keep_allowed_(logits: Tensor, indexes: Many[int], rows: Many[Row], eos_token_ids: Many[int], put: Put) -> None:
    """Set everything that a grammar, or a list, does not allow next to -inf."""
    bitmask = np.zeros((len(indexes), -(-logits.shape[1] // 32)), dtype=np.int32)
    for bits, i in zip(bitmask, indexes, strict=True):
        matcher = rows[i].sequence.matcher
        if matcher is not None:
            assert not rows[i].drafts, "a matcher knows no state but its own: no drafts beside it"
            matcher.fill_allowed(bits)
    allowed = np.unpackbits(bitmask.view(np.uint8), axis=1, count=logits.shape[1], bitorder="little").view(np.bool_)
    for row, i in zip(allowed, indexes, strict=True):
        row[list(rows[i].params.allowed_token_ids)] = True
        banned = rows[i].banned(eos_token_ids)
        ends = row[banned].copy()
        row[banned] = False
        if not row.any():
            row[banned] = ends
    at = put(np.array(indexes))
    logits[at] = logits[at].masked_fill_(put(~allowed), -torch.inf)


def _ban_ends_(logits: Tensor, indexes: Many[int], rows: Many[Row], eos_token_ids: Many[int], put: Put) -> None:
    pairs = np.array([(i, token) for i in indexes for token in rows[i].banned(eos_token_ids)], dtype=np.int64)
    at, token_ids = put(pairs.reshape(-1, 2)).unbind(1)
    logits[at, token_ids] = logits.new_full((), -torch.inf)  # a number of the host would be waited for


def _add_(
    logits: Tensor, at: NDArray[np.int64], token_ids: NDArray[np.int64], amounts: NDArray[np.float64], put: Put
) -> None:
    """Add amounts to logits[at, token_ids], in which no pair occurs twice."""
    where = put(at), put(token_ids)
    logits[where] = logits[where] + put(amounts).float()
