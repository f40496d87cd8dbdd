"""The choices of one request, from its arrival to its one final message, and the sums of their counts."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.protocol import EngineError, Final, FinishReason, GenerateRequest, Usage
from engine.sequence import Sequence


class RequestGroup(msgspec.Struct, eq=False):
    """The choices of one request."""

    request: GenerateRequest
    choices: list[Sequence]
    """All choices by index."""
    held: list[Sequence]
    """Choices that are not queued yet: all of them while the grammar compiles, then all but the leader, which computes
    the prompt that the others share through the prefix cache."""
    num_alive: int
    """The number of choices that have not ended."""
    arrived_s: float
    """The time of the request's arrival, by the monotonic clock."""
    compiling: bool = False
    """True while the request's grammar is compiled."""
    num_cached_tokens: int = 0
    """The cached tokens that the first admission of the request found."""
    adapter_wait_s: float = 0.0
    """Seconds that the first choice waited for the adapter alone."""

    @classmethod
    def of(cls, request: GenerateRequest, seed: int, now_s: float) -> RequestGroup:
        """Return the group of a request that arrives now, each choice with a seed of its own."""
        choices = [
            Sequence(request, list(request.prompt_token_ids), seed + index, now_s, index) for index in range(request.n)
        ]
        compiling = request.sampling.grammar is not None
        return cls(request, choices, list(choices), len(choices), now_s, compiling)

    @property
    def is_started(self) -> bool:
        """Tell whether any choice has ever run."""
        return any(choice.started_s for choice in self.choices)

    def final(
        self, reason: FinishReason, now_s: float, error: EngineError | None = None, embedding: bytes | None = None
    ) -> Final:
        """Return the request's final message, with the usage of all its choices.

        error: the error that ended the request; None where none did. embedding: as `Final.embedding`; None where none
        was asked for.
        """
        return Final(self.request.request_id, reason, self._usage(now_s), error, embedding)

    def _usage(self, now_s: float) -> Usage:
        """Return the request's usage.

        Times are of the request: until any choice started, until any had a token, until the last ended.
        """
        started_s = min((c.started_s for c in self.choices if c.started_s), default=now_s)
        first_token_s = min((c.first_token_s for c in self.choices if c.first_token_s), default=now_s)
        produced = sum(choice.num_completion_tokens for choice in self.choices)
        num_kept_tokens = sum(_num_kept(choice) for choice in self.choices)
        return Usage(
            prompt_tokens=len(self.request.prompt_token_ids) if self.is_started else 0,  # else nothing was computed
            cached_tokens=self.num_cached_tokens,
            completion_tokens=num_kept_tokens,
            discarded_tokens=produced - num_kept_tokens,
            queue_ms=(started_s - self.arrived_s) * 1e3,
            prefill_ms=(first_token_s - started_s) * 1e3,
            decode_ms=(now_s - first_token_s) * 1e3,
            adapter_wait_ms=self.adapter_wait_s * 1e3,
            adapter_load_bytes=sum(choice.adapter_load_bytes for choice in self.choices),
            draft_tokens=sum(choice.num_draft_tokens for choice in self.choices),
            accepted_draft_tokens=sum(min(choice.num_accepted_drafts, _num_kept(choice)) for choice in self.choices),
        )


def embedding_of(request: GenerateRequest, pooled: NDArray[np.float32]) -> bytes | None:
    """Return pooled, fp32 [hidden], as `protocol.Final.embedding`; None where it has no direction or is not finite.

    The mean of the hidden states and their sum have the same direction, so that nothing is divided by the number of
    tokens for a vector of unit length.
    """
    length = float(np.linalg.norm(pooled.astype(np.float64)))
    if not np.isfinite(length):
        return None
    if request.pooling == "score":
        return pooled.astype("<f4").tobytes()
    if not request.is_normalized:
        return (pooled / (len(request.prompt_token_ids) if request.pooling == "mean" else 1)).astype("<f4").tobytes()
    return (pooled / length).astype("<f4").tobytes() if length else None


def _num_kept(sequence: Sequence) -> int:
    count = sequence.num_completion_tokens
    return count if sequence.num_kept_tokens is None else min(sequence.num_kept_tokens, count)
