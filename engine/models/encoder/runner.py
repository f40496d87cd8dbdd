"""Computes plans of an encoder: each text whole, in the step whose chunk reaches its end (`engine.device.Runner`).

The scheduler cuts prompts into chunks as for any model, and so keeps its budget, its fairness and its bands. A text has
to be computed at once here: chunks before its last one are passed over, and the last one stands for all of it. A step
computes at most as many rows as its budget, and one text more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from engine.lora.layer import LoadedAdapter
from engine.models.decoder import StepLora
from engine.models.encoder.attention import Texts
from engine.models.encoder.build import pooled
from engine.models.encoder.model import Encoder
from engine.sequence import ChunkResult, Plan
from engine.sequence import Sequence as Text


class AdaptedRows(msgspec.Struct, frozen=True):
    """Rows [first, last) of a step, which have one adapter."""

    adapter: LoadedAdapter
    first: int
    last: int


MakeLora = Callable[[Sequence[AdaptedRows]], StepLora | None]


class EncoderRunner:
    """Computes plans by an encoder.

    adapter_in: returns the adapter that a slot of the pool holds. make_lora: returns the adapters of a step's rows.
    before: called ahead of each step.
    """

    def __init__(
        self,
        encoder: Encoder,
        pooling: str,
        adapter_in: Callable[[int], LoadedAdapter],
        make_lora: MakeLora,
        before: Callable[[], None] = lambda: None,
    ) -> None:
        self._encoder = encoder
        self._pooling = pooling
        self._adapter_in = adapter_in
        self._make_lora = make_lora
        self._before = before

    @property
    def runs_ahead(self) -> bool:
        """False: a plan's results are there when it has been launched."""
        return False

    def launches_fast(self, plan: Plan) -> bool:
        """Return False: a launch computes the whole step."""
        return False

    def launch(self, plan: Plan) -> EncodedStep:
        """Compute a plan, and return its results as a step."""
        return EncodedStep(self.run(plan))

    def begin(self, plan: Plan) -> None:
        """Return None: a step cannot pause."""

    @torch.inference_mode()
    def run(self, plan: Plan) -> list[ChunkResult]:
        """Compute a plan, and return one result for each of its chunks."""
        results = [ChunkResult()] * len(plan.chunks)
        # Texts of one length are neighbors, and attend in one operation.
        whole = sorted(
            (place for place, chunk in enumerate(plan.chunks) if chunk.samples),
            key=lambda place: plan.chunks[place].sequence.length,
        )
        if not whole:
            return results
        self._before()
        texts = [plan.chunks[place].sequence for place in whole]
        for place, vector in zip(whole, self._vectors(texts), strict=True):
            results[place] = ChunkResult(pooled=vector)
        return results

    def _vectors(self, texts: Sequence[Text]) -> list[NDArray[np.float32]]:
        """Return the pooled hidden states of each text, or its score, as the text's request asks."""
        encoder, lengths = self._encoder, [text.length for text in texts]
        ids = np.concatenate([np.asarray(text.token_ids, np.int64) for text in texts])
        positions = np.concatenate([np.arange(length) for length in lengths])
        types = np.concatenate([_types(text) for text in texts])
        token_ids, where, kinds = (torch.from_numpy(each).to(encoder.device) for each in (ids, positions, types))
        hidden = encoder.forward(token_ids, where, kinds, Texts(lengths, encoder.device), self._lora(texts))
        rows = torch.split(hidden, lengths)
        poolings = [text.request.pooling or self._pooling for text in texts]
        vectors = torch.stack(
            [
                # The sum, as the mean of a text that is computed in parts.
                part.float().sum(0)
                if pooling == "mean"
                else pooled(part, self._pooling if pooling == "score" else pooling).float()
                for part, pooling in zip(rows, poolings, strict=True)
            ]
        )
        found = list(vectors.cpu().numpy())
        scored = [place for place, pooling in enumerate(poolings) if pooling == "score"]
        if scored:
            scores = encoder.scores(vectors[scored].to(encoder.dtype)).cpu().numpy()
            for place, score in zip(scored, scores, strict=True):
                found[place] = score
        return found

    def _lora(self, texts: Sequence[Text]) -> StepLora | None:
        parts, first = [], 0
        for text in texts:
            if text.adapter_slot is not None:
                parts.append(AdaptedRows(self._adapter_in(text.adapter_slot), first, first + text.length))
            first += text.length
        return self._make_lora(parts) if parts else None


class EncodedStep(msgspec.Struct, frozen=True):
    """A step that is computed (`engine.device.Step`)."""

    results: list[ChunkResult]

    def await_half(self) -> None:
        """Return at once: the step is computed."""

    def wait(self) -> Sequence[ChunkResult]:
        """Return the results, which are there already."""
        return self.results


def _types(text: Text) -> NDArray[np.int64]:
    """Return the segment of each token: 0, or 1 for those of the second text of a pair."""
    first = text.request.num_first_tokens
    types = np.zeros(text.length, np.int64)
    if first:
        types[first:] = 1
    return types
