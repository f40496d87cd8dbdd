"""Chooses the tokens of a step from logits, for sequences that each ask for something else.

The order of operations: log-probabilities are read off the unmodified distribution; then what `logits_processors`
changes; then a choice for every row. All of it is launched before anything is waited for, and one transfer brings all
tokens to the host.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many

import numpy as np
from torch import Tensor

from engine.sampling.choice import choose_on_host
from engine.sampling.logits_processors import Adjust, Row, adjust_, process_logits_
from engine.sampling.logprobs import PendingLogprobs, start_logprobs
from engine.sequence import SampledToken
from engine.transfers import FetchedTensor, HostTransfers, Transfers

Choose = Callable[[Tensor, Many[Row]], Tensor]


class PendingTokens:
    """The tokens of rows, one each, on their way to the host: ids [N] int64, -1 where no logits were finite.

    on_device: the ids on the device. asking: the rows whose log-probabilities are wanted, in their order. logprobs:
    the log-probabilities of the asking rows; None: no row asks.
    """

    def __init__(
        self, on_device: Tensor, token_ids: FetchedTensor, asking: Many[int], logprobs: PendingLogprobs | None
    ) -> None:
        self.on_device = on_device
        self._token_ids = token_ids
        self._asking = asking
        self._logprobs = logprobs

    def wait(self) -> list[SampledToken]:
        """Return the token of each row, once it is on the host, and log-probabilities where they are wanted."""
        chosen = self._token_ids.wait().tolist()
        sampled = [SampledToken(token) if token >= 0 else SampledToken(0, finite=False) for token in chosen]
        if self._logprobs is not None:
            for i, logprobs in zip(self._asking, self._logprobs.wait(), strict=True):
                sampled[i] = SampledToken(sampled[i].token_id, sampled[i].finite, logprobs)
        return sampled


class Sampler:
    """Chooses tokens.

    Stateless between steps: a choice depends on the sequence's tokens, its seed and the position alone.

    choose: from logits [N, V] fp32 and their rows to token ids [N] int64 on the device, -1 where the largest is not
    finite.
    adjust: applies logit_bias and penalties, as `logits_processors.adjust_`.
    """

    def __init__(
        self,
        eos_token_ids: tuple[int, ...],
        transfers: Transfers | None = None,
        choose: Choose = choose_on_host,
        adjust: Adjust = adjust_,
    ) -> None:
        self._eos = eos_token_ids
        self._transfers = transfers or HostTransfers()
        self._choose = choose
        self._adjust = adjust

    def start(self, logits: Tensor, rows: Many[Row]) -> PendingTokens:
        """Start to choose one token per row of logits [N, V] fp32, which are overwritten."""
        asking = [i for i, row in enumerate(rows) if row.params.num_logprobs is not None]
        unmodified = logits[self._transfers.put(np.array(asking))] if asking else None
        process_logits_(logits, rows, self._eos, self._transfers.put, self._adjust)
        token_ids = self._choose(logits, rows)
        logprobs = None
        if unmodified is not None:
            targets = token_ids[self._transfers.put(np.array(asking))].clamp(min=0)
            counts = [rows[i].params.num_logprobs or 0 for i in asking]
            logprobs = start_logprobs(unmodified, targets, counts, self._transfers)
        return PendingTokens(token_ids, self._transfers.fetch(token_ids), asking, logprobs)

    def choose(self, logits: Tensor, rows: Many[Row]) -> list[SampledToken]:
        """Choose one token per row as `start` does, and wait for the tokens."""
        return self.start(logits, rows).wait()
