"""From logits to the chosen tokens of a step, for sequences that each ask for something else.

The order of operations: log-probabilities are read off the unmodified distribution; then what `logits_processors`
changes; then the most likely token, or temperature, truncation and a draw (`kernels.sampling`). A row that asks for
none of this takes part in one maximum over the logits, and one transfer brings all tokens to the host.
"""

from __future__ import annotations

from collections.abc import Sequence as Many

import torch
from torch import Tensor

from engine.protocol import SamplingParams
from engine.sampling.logits_processors import Row, process_logits_
from engine.sampling.logprobs import token_logprobs
from engine.sequence import Sampled
from kernels.sampling import most_likely, sample, uniform

GREEDY_BELOW = 1e-5  # a temperature that would overflow fp32 means the most likely token


class Sampler:
    """Stateless between steps: a draw depends on the sequence's tokens, its seed and the position alone."""

    def __init__(self, eos_token_ids: tuple[int, ...]) -> None:
        self._eos = eos_token_ids

    def choose(self, logits: Tensor, rows: Many[Row]) -> list[Sampled]:
        """One token per row: logits [N, V] fp32, which are overwritten."""
        asking = [i for i, row in enumerate(rows) if row.params.num_logprobs is not None]
        unmodified = logits[asking] if asking else None
        process_logits_(logits, rows, self._eos)
        best, token_ids = most_likely(logits)
        random = [i for i, row in enumerate(rows) if row.params.temperature > GREEDY_BELOW]
        if random:
            drawing = logits if len(random) == len(rows) else logits[random]
            token_ids[random] = self._draw(drawing, [rows[i] for i in random])
        chosen = torch.where(torch.isfinite(best), token_ids, -1).tolist()
        sampled = [Sampled(token) if token >= 0 else Sampled(0, finite=False) for token in chosen]
        if unmodified is not None:
            self._add_logprobs(sampled, unmodified, asking, [rows[i].params for i in asking])
        return sampled

    @staticmethod
    def _draw(logits: Tensor, rows: Many[Row]) -> Tensor:
        params = [row.params for row in rows]

        def column(values: list[float], dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.tensor(values, dtype=dtype, device=logits.device)

        return sample(
            logits,
            temperature=column([p.temperature for p in params]),
            top_k=column([max(p.top_k, 0) for p in params], torch.int64),
            top_p=column([p.top_p for p in params]),
            min_p=column([p.min_p for p in params]),
            u=column([uniform(row.sequence.seed, row.position) for row in rows], torch.float64),
        )

    @staticmethod
    def _add_logprobs(
        sampled: list[Sampled], unmodified: Tensor, indexes: Many[int], params: Many[SamplingParams]
    ) -> None:
        token_ids = [sampled[i].token_id for i in indexes]
        counts = [p.num_logprobs or 0 for p in params]
        for i, logprobs in zip(indexes, token_logprobs(unmodified, token_ids, counts), strict=True):
            sampled[i] = Sampled(sampled[i].token_id, sampled[i].finite, logprobs)
