"""Log-probabilities of chosen or given tokens, and of the most likely ones beside them."""

from __future__ import annotations

from collections.abc import Sequence as Many

import torch
from torch import Tensor

from engine.protocol import MAX_LOGPROBS, TokenLogprobs


def token_logprobs(logits: Tensor, token_ids: Many[int], counts: Many[int]) -> list[TokenLogprobs]:
    """logits [N, V] fp32, unmodified; per row the token to look up and how many of the most likely ones to name,
    at most MAX_LOGPROBS.

    Every row is ranked to the same depth, so that its neighbors can't reorder equally likely tokens.
    """
    whole = logits.logsumexp(-1)
    targets = torch.tensor(token_ids, dtype=torch.int64, device=logits.device)
    chosen = (logits.gather(1, targets[:, None])[:, 0] - whole).tolist()
    if not any(counts):
        return [TokenLogprobs(logprob, [], []) for logprob in chosen]
    top, top_ids = logits.topk(min(MAX_LOGPROBS, logits.shape[1]), -1)
    rows = zip(chosen, counts, top_ids.tolist(), (top - whole[:, None]).tolist(), strict=True)
    return [TokenLogprobs(logprob, ids[:count], values[:count]) for logprob, count, ids, values in rows]
