"""Guesses of what follows, from the sequence's own tokens: prompt lookup (Saxena, 2023). No model, no torch.

Text that is quoted, edited or summarized repeats its prompt. Where the last few tokens occurred before, what followed
them then is proposed now. A wrong guess costs a row of a step and never changes the text.
"""

from __future__ import annotations

# Longer matches are right more often, so they are tried first; beyond three tokens hardly anything is left to tell
# apart, and one token alone still finds the repeated names and brackets of structured text.
NGRAM_SIZES = (3, 2, 1)


class PromptLookup:
    """The drafter of one sequence. It keeps, per n-gram, the position after its latest occurrence that has one, so that
    a proposal costs the same however long the sequence is."""

    def __init__(self) -> None:
        self._position_after: dict[tuple[int, ...], int] = {}
        self._num_seen = 0

    def propose(self, token_ids: list[int], max_tokens: int) -> tuple[int, ...]:
        """See `sequence.Drafter`."""
        self._read(token_ids)
        for size in NGRAM_SIZES:
            position = self._position_after.get(tuple(token_ids[-size:])) if len(token_ids) > size else None
            if position is not None:
                return tuple(token_ids[position : position + max_tokens])
        return ()

    def _read(self, token_ids: list[int]) -> None:
        for position in range(self._num_seen, len(token_ids)):
            for size in NGRAM_SIZES:
                if position >= size:
                    self._position_after[tuple(token_ids[position - size : position])] = position
        self._num_seen = len(token_ids)
