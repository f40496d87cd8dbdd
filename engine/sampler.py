"""From logits to the chosen tokens of a step, for sequences that each ask for something else."""

from __future__ import annotations

from collections.abc import Sequence as Many

import torch
from torch import Tensor

from engine.protocol import TokenLogprobs
from engine.sequence import Sampled, Sequence
from kernels.sampling import num_candidates, sample, uniform

GREEDY_BELOW = 1e-5  # a temperature that would overflow fp32 means the most likely token


class Sampler:
    """Stateless between steps: a draw depends on the sequence's seed and its position alone."""

    def __init__(self, eos_token_ids: tuple[int, ...]) -> None:
        self._eos = eos_token_ids

    def choose(self, logits: Tensor, sequences: Many[Sequence]) -> list[Sampled]:
        """logits [S, V] fp32, one row per sequence. Log-probabilities are of the unmodified distribution."""
        logprobs = self._logprobs_source(logits, sequences)
        self._ban_early_stops(logits, sequences)
        best, token_ids = logits.max(-1)
        finite = torch.isfinite(best).tolist()  # a NaN anywhere in a row is its maximum
        random = [
            row for row, s in enumerate(sequences) if finite[row] and s.request.sampling.temperature > GREEDY_BELOW
        ]
        if random:
            token_ids[random] = self._draw(logits[random], [sequences[row] for row in random])
        chosen = token_ids.tolist()
        return [
            Sampled(
                token, finite[row], None if logprobs is None else _token_logprobs(logprobs[row], token, sequences[row])
            )
            for row, token in enumerate(chosen)
        ]

    def _ban_early_stops(self, logits: Tensor, sequences: Many[Sequence]) -> None:
        """Before min_tokens, neither the model's end nor a stop id can be chosen."""
        for row, sequence in enumerate(sequences):
            sampling = sequence.request.sampling
            if sequence.num_completion_tokens < sampling.min_tokens:
                banned = [*sampling.stop_token_ids, *(() if sampling.ignore_eos else self._eos)]
                logits[row, banned] = -torch.inf

    @staticmethod
    def _draw(logits: Tensor, sequences: Many[Sequence]) -> Tensor:
        """Rows that truncate alike go together, so that a neighbor can't change a row's choice."""
        token_ids = torch.empty(len(sequences), dtype=torch.int64, device=logits.device)
        params = [s.request.sampling for s in sequences]
        groups: dict[int, list[int]] = {}
        for row, p in enumerate(params):
            groups.setdefault(num_candidates(p.top_k, p.top_p, logits.shape[1]), []).append(row)

        def column(values: list[float], dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.tensor(values, dtype=dtype, device=logits.device)

        for candidates, rows in groups.items():
            token_ids[rows] = sample(
                logits[rows],
                temperature=column([params[row].temperature for row in rows]),
                top_k=column([max(params[row].top_k, 0) for row in rows], torch.int64),
                top_p=column([params[row].top_p for row in rows]),
                min_p=column([params[row].min_p for row in rows]),
                u=column([uniform(sequences[row].seed, len(sequences[row].token_ids)) for row in rows], torch.float64),
                candidates=candidates,
            )
        return token_ids

    @staticmethod
    def _logprobs_source(logits: Tensor, sequences: Many[Sequence]) -> Tensor | None:
        if all(s.request.sampling.num_logprobs is None for s in sequences):
            return None
        return torch.log_softmax(logits, -1)


def _token_logprobs(row: Tensor, token: int, sequence: Sequence) -> TokenLogprobs | None:
    count = sequence.request.sampling.num_logprobs
    if count is None:
        return None
    values, ids = row.topk(count)
    return TokenLogprobs(float(row[token]), ids.tolist(), values.tolist())
