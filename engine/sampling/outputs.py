"""The rows of a step that go on past the last layer: to choose tokens, to score the prompt's, to be pooled.

Other rows never meet the final norm, and only rows to choose or to score by meet the head.
"""

from __future__ import annotations

from collections.abc import Sequence as Many

import msgspec

from engine.sampling.logits_processors import Row
from engine.sequence import Chunk


class ChunkRows(msgspec.Struct, frozen=True):
    """The rows of the batch that one chunk needs: `ChunkResult` has the results of each kind."""

    chunk: Chunk
    sampled: range
    """The rows whose logits choose a token."""
    scored: range
    """The rows of prompt tokens whose log-probabilities are wanted."""
    pooled: range
    """The rows whose hidden states are pooled."""

    @property
    def num_rows(self) -> int:
        """The number of wanted rows; a row that is wanted for two things counts twice."""
        return len(self.sampled) + len(self.scored) + len(self.pooled)

    @property
    def sampling_rows(self) -> list[Row]:
        """The rows to sample: one for the sequence's last token, one for each draft."""
        drafts = self.chunk.drafts
        return [Row(self.chunk.sequence, drafts[:i]) for i in range(len(self.sampled))]

    @property
    def scored_token_ids(self) -> list[int]:
        """The prompt's tokens that the `scored` rows predict."""
        first = self.chunk.first + 1
        return self.chunk.sequence.token_ids[first : first + len(self.scored)]

    @property
    def num_prompt_logprobs(self) -> int:
        """The number of most likely tokens that come with each token of the prompt; 0 where none are wanted."""
        return self.chunk.sequence.request.sampling.num_prompt_logprobs or 0


def rows_of(chunks: Many[Chunk]) -> list[ChunkRows]:
    """Return the rows that each chunk needs of a batch that is the chunks' rows one after the other."""
    wanted: list[ChunkRows] = []
    first = 0
    for chunk in chunks:
        last = first + chunk.num_tokens
        sampled = range(last - _num_sampled(chunk), last)
        scored = range(first, first + _num_scored(chunk))
        pooled = range(last - _num_pooled(chunk), last)
        wanted.append(ChunkRows(chunk, sampled, scored, pooled))
        first = last
    return wanted


def _num_sampled(chunk: Chunk) -> int:
    return 1 + len(chunk.drafts) if chunk.samples and chunk.sequence.request.sampling.max_tokens else 0


def _num_scored(chunk: Chunk) -> int:
    """Return how many of the chunk's first rows predict a token of the prompt whose log-probability is wanted."""
    sequence = chunk.sequence
    if sequence.request.sampling.num_prompt_logprobs is None or sequence.index or sequence.num_completion_tokens:
        return 0
    return max(min(chunk.num_tokens, sequence.num_prompt_tokens - 1 - chunk.first), 0)


def _num_pooled(chunk: Chunk) -> int:
    """Return how many of the chunk's last rows are pooled."""
    if chunk.sequence.request.pooling == "mean":
        return chunk.num_tokens
    return int(chunk.sequence.request.pooling in ("last", "score") and chunk.samples)
