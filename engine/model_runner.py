"""Runs one plan and returns what each request wants of its hidden states.

The device's path gives the hidden states. A chunk's hidden states become tokens, the prompt's log-probabilities, or a
part of an embedding.

Everything is launched before anything is waited for; then one wait for the tokens, and what was fetched with them, is
enough. If the device feeds tokens from step to step, the next plan may be launched before that wait.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many
from functools import partial
from itertools import islice
from operator import itemgetter

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.device import DevicePath, PausableForward, Pause
from engine.sampling.logprobs import PendingLogprobs, start_logprobs
from engine.sampling.outputs import ChunkRows, rows_of
from engine.sampling.sampler import PendingTokens, Sampler
from engine.sampling.scores import Score
from engine.sequence import ChunkResult, Plan
from engine.transfers import Event, FetchedTensor, Transfers

LOGPROB_ROWS = 64


class ModelRunner:
    """Computes plans on a device: the `engine.device.Runner` of models that write text."""

    def __init__(
        self,
        path: DevicePath,
        sampler: Sampler,
        transfers: Transfers,
        score: Score | None = None,
        *,
        pauses: bool = False,
    ) -> None:
        """Set up the runner.

        score: computes the score of a row, in a model that ranks.
        pauses: True if the path's steps can pause.
        """
        self._score = score
        self._pauses = pauses
        self._path = path
        self._sampler = sampler
        self._transfers = transfers

    @property
    def runs_ahead(self) -> bool:
        """True if the path can feed the tokens of one step to the next."""
        return self._path.feeds

    def launches_fast(self, plan: Plan) -> bool:
        """Tell whether the path launches the plan as one replay."""
        return self._path.replays(plan, sum(wanted.num_rows for wanted in rows_of(plan.chunks)))

    def run(self, plan: Plan) -> list[ChunkResult]:
        """Launch a plan and wait for it."""
        return self.launch(plan).wait()

    @torch.inference_mode()
    def launch(self, plan: Plan) -> LaunchedStep:
        """Launch the step of a plan.

        Its chunks may follow those of the plan launched before it, if this runner runs ahead.
        """
        order = self._path.order(plan)
        plan = Plan([plan.decodes[place] for place in order], plan.prefills)
        if not plan.prefills:  # a decode wants each of its rows, so nothing has to be computed before the device begins
            hidden = self._path.forward(plan, range(plan.num_tokens))
        wanted = rows_of(plan.chunks)
        if plan.prefills:
            hidden = self._path.forward(plan, _output_rows(wanted))
        return self._finish(order, wanted, hidden)

    def begin(self, plan: Plan) -> StepInParts | None:
        """Begin a plan whose step can pause; return None where steps cannot, or memory is lacking for that."""
        if not self._pauses:
            return None
        order = self._path.order(plan)
        plan = Plan([plan.decodes[place] for place in order], plan.prefills)
        wanted = rows_of(plan.chunks)
        forward = self._path.begin(plan, _output_rows(wanted))
        return None if forward is None else StepInParts(forward, partial(self._finish, order, wanted))

    @torch.inference_mode()
    def _finish(self, order: Many[int], wanted: list[ChunkRows], hidden: Tensor) -> LaunchedStep:
        """Launch the choice of tokens, the scores and the embeddings from the hidden states of `_output_rows`.

        hidden: [W, hidden].
        """
        counts = [sum(len(rows) for rows in kind) for kind in _kinds(wanted)]
        to_sample, to_score, to_pool = torch.split(hidden, counts)
        rows = [row for w in wanted for row in w.sampling_rows]
        tokens = self._sampler.start(self._path.logits(to_sample), rows) if rows else None
        scores = self._score_prompts(to_score, wanted)
        pooled = self._pool(to_pool, wanted)
        if tokens is not None and self._path.feeds:
            self._path.feed(tokens.on_device, [row.sequence for row in rows])
        return LaunchedStep(order, wanted, self._path.halfway, tokens, scores, pooled)

    def _score_prompts(self, hidden: Tensor, wanted: Many[ChunkRows]) -> list[PendingLogprobs]:
        """Start the log-probabilities of all `scored` rows, a slice at a time: a prompt's logits would not fit."""
        token_ids = np.array([token for w in wanted for token in w.scored_token_ids], dtype=np.int64)
        counts = [w.num_prompt_logprobs for w in wanted for _ in w.scored]
        scored = []
        for first in range(0, len(token_ids), LOGPROB_ROWS):
            part = slice(first, first + LOGPROB_ROWS)
            logits = self._path.logits(hidden[part])
            targets = self._transfers.put(token_ids[part])
            scored.append(start_logprobs(logits, targets, counts[part], self._transfers))
        return scored

    def _pool(self, hidden: Tensor, wanted: Many[ChunkRows]) -> list[FetchedTensor | None]:
        """Start to fetch, per chunk, the sum of its `pooled` rows; None for a chunk without any."""
        parts = torch.split(hidden, [len(w.pooled) for w in wanted])
        pooled = [part.float().sum(0) if len(part) else None for part in parts]
        scored = [place for place, w in enumerate(wanted) if w.pooled and w.chunk.sequence.request.pooling == "score"]
        if scored and self._score is not None:
            rows = torch.cat([parts[place] for place in scored])
            for first in range(0, len(rows), LOGPROB_ROWS):
                few = scored[first : first + LOGPROB_ROWS]
                scores = self._score(rows[first : first + LOGPROB_ROWS], self._path.logits)
                for place, score in zip(few, scores, strict=True):
                    pooled[place] = score
        return [None if vector is None else self._transfers.fetch(vector) for vector in pooled]


def _kinds(wanted: Many[ChunkRows]) -> tuple[list[Many[int]], list[Many[int]], list[Many[int]]]:
    """Return the rows of each chunk from which tokens are drawn, those that are scored, and those that are pooled."""
    return [w.sampled for w in wanted], [w.scored for w in wanted], [w.pooled for w in wanted]


def _output_rows(wanted: Many[ChunkRows]) -> list[int]:
    """Return the rows whose hidden states are wanted: kind by kind, in each kind by chunk."""
    return [row for kind in _kinds(wanted) for rows in kind for row in rows]


class StepInParts:
    """A step whose hidden states are computed in one or more parts (`engine.device.PausableStep`)."""

    def __init__(self, forward: PausableForward, finish: Callable[[Tensor], LaunchedStep]) -> None:
        self._forward = forward
        self._finish = finish
        self._launched: LaunchedStep | None = None

    def go_on(self, pause: Pause | None, seconds: float) -> bool:
        """Compute on, until the pause is asked for or the seconds are over; return True once the step is done."""
        if not self._forward.go_on(pause, seconds):
            return False
        self._launched = self._finish(self._forward.hidden)
        return True

    def wait(self) -> list[ChunkResult]:
        """Return the results of the step, which is done, in the order of the plan."""
        assert self._launched is not None
        return self._launched.wait()


class LaunchedStep(msgspec.Struct, frozen=True):
    """A launched step (`engine.device.Step`)."""

    order: Many[int]
    """The order in which the plan's decodes are computed."""
    wanted: list[ChunkRows]
    """The rows that each chunk needs: the decodes' in `order`, then the prefills'."""
    halfway: Event
    """The event that the device reaches in the middle of the step."""
    tokens: PendingTokens | None
    """The tokens that the step chooses; None where it chooses none."""
    scores: list[PendingLogprobs]
    """The log-probabilities of prompts' tokens, in parts of LOGPROB_ROWS rows."""
    pooled: list[FetchedTensor | None]
    """The pooled hidden states of each chunk of `wanted`; None for a chunk that pools nothing."""

    def await_half(self) -> None:
        """Wait until the device is halfway through the step."""
        self.halfway.synchronize()

    def wait(self) -> list[ChunkResult]:
        """Wait for the step, and return its results in the order of the plan."""
        sampled = iter(self.tokens.wait() if self.tokens is not None else [])
        scored = iter([logprobs for part in self.scores for logprobs in part.wait()])
        results = [
            ChunkResult(list(islice(sampled, len(w.sampled))), list(islice(scored, len(w.scored))), _on_host(part))
            for w, part in zip(self.wanted, self.pooled, strict=True)
        ]
        decodes = sorted(zip(self.order, results, strict=False), key=itemgetter(0))
        return [result for _, result in decodes] + results[len(self.order) :]


def _on_host(pooled: FetchedTensor | None) -> NDArray[np.float32] | None:
    return None if pooled is None else pooled.wait().numpy()
