"""Log-probabilities of chosen or given tokens, and of the most likely ones beside them."""

from __future__ import annotations

from collections.abc import Sequence as Many

import torch
from torch import Tensor

from engine.protocol import MAX_LOGPROBS, TokenLogprobs
from engine.transfers import FetchedTensor, HostTransfers, Transfers


class PendingLogprobs:
    """Log-probabilities of some rows, on their way to the host.

    top: the most likely tokens of each row and their log-probabilities.
    """

    def __init__(
        self, chosen: FetchedTensor, top: tuple[FetchedTensor, FetchedTensor] | None, counts: Many[int]
    ) -> None:
        self._chosen = chosen
        self._top = top
        self._counts = counts

    def wait(self) -> list[TokenLogprobs]:
        """Return the log-probabilities of each row, once they are on the host."""
        chosen: list[float] = self._chosen.wait().tolist()
        if self._top is None:
            return [TokenLogprobs(logprob, [], []) for logprob in chosen]
        top_ids, top = (fetched.wait().tolist() for fetched in self._top)
        rows = zip(chosen, self._counts, top_ids, top, strict=True)
        return [TokenLogprobs(logprob, ids[:count], values[:count]) for logprob, count, ids, values in rows]


def start_logprobs(logits: Tensor, token_ids: Tensor, counts: Many[int], transfers: Transfers) -> PendingLogprobs:
    """Start to look up log-probabilities, and to rank the most likely tokens.

    logits [N, V] fp32, unmodified, valid during this call; token_ids [N] int64, the tokens to look up.
    counts: the number of most likely tokens to name for each row, at most MAX_LOGPROBS.
    Every row is ranked to the same depth, so that its neighbors can't reorder equally likely tokens.
    """
    whole = logits.logsumexp(-1)
    chosen = transfers.fetch(logits.gather(1, token_ids[:, None])[:, 0] - whole)
    if not any(counts):
        return PendingLogprobs(chosen, None, counts)
    top, top_ids = logits.topk(min(MAX_LOGPROBS, logits.shape[1]), -1)
    return PendingLogprobs(chosen, (transfers.fetch(top_ids), transfers.fetch(top - whole[:, None])), counts)


def token_logprobs(logits: Tensor, token_ids: Many[int], counts: Many[int]) -> list[TokenLogprobs]:
    """Return the log-probabilities of `start_logprobs` on a CPU, at once."""
    return start_logprobs(logits, torch.tensor(token_ids, dtype=torch.int64), counts, HostTransfers()).wait()
