"""Guesses of the tokens that follow one sequence: from its own tokens, or from its client's prediction.

No model, no torch. Text that is quoted, edited or summarized repeats its prompt. If the last few tokens occurred
before, the tokens that followed them then are proposed now: prompt lookup (Saxena, 2023). A file that is written anew
with a few changes is mostly unchanged, and the client has it: then the guess is the tokens that follow in there. A
wrong guess costs a row of a step and never changes the text.
"""

from __future__ import annotations

from collections.abc import Sequence as Many

from engine.protocol import GenerateRequest
from engine.sequence import Drafter

# Longer matches are right more often, so they are tried first; beyond three tokens hardly anything is left to tell
# apart, and one token alone still finds the repeated names and brackets of structured text.
NGRAM_SIZES = (3, 2, 1)


MAX_AHEAD = 2048
MAX_FOLLOWED = 32


def drafter_of(request: GenerateRequest) -> Drafter:
    """Return the drafter of one of a request's sequences.

    If the request has a prediction, all drafts are guesses from the prediction, so that they can be counted as its
    tokens.
    """
    if request.predicted_token_ids:
        return PredictedOutput(request.predicted_token_ids, len(request.prompt_token_ids))
    return PromptLookup()


class PromptLookup:
    """The drafter of one sequence by its own text.

    It keeps, per n-gram, the position after its latest occurrence that has one, so that a proposal costs the same
    however long the sequence is.
    """

    def __init__(self) -> None:
        self._position_after: dict[tuple[int, ...], int] = {}
        self._num_seen = 0

    def propose(self, token_ids: list[int], max_tokens: int) -> tuple[int, ...]:
        """Return drafts as `sequence.Drafter` says: what followed the text's last tokens where they occurred before."""
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


class PredictedOutput:
    """The drafter of one sequence by its client's prediction.

    While the two agree, the next tokens of the prediction are proposed; after they part, none are, until the last
    tokens of the completion occur in the prediction: it is resumed after their next occurrence from where it was left,
    which passes over parts that were left out, changed or put in. A proposal costs the same however long the prediction
    is: it is looked at no further than MAX_AHEAD from where it was left. If more than MAX_FOLLOWED new tokens differ
    from the prediction, only the last ones are followed.
    """

    def __init__(self, prediction: Many[int], num_prompt_tokens: int) -> None:
        self._prediction = prediction
        self._num_seen = num_prompt_tokens
        self._next = 0  # of the prediction, where the two agreed last
        self._agrees = True
        self._window = ""  # of the prediction, a character for each token, so that `str.find` finds n-grams
        self._window_start = 0

    def propose(self, token_ids: list[int], max_tokens: int) -> tuple[int, ...]:
        """Return drafts as `sequence.Drafter` says; the first token_ids that this method is given are the prompt."""
        new = token_ids[self._num_seen :]
        if self._agrees and self._prediction[self._next : self._next + len(new)] == new:
            self._next += len(new)
        else:
            self._agrees = self._agrees and len(new) <= MAX_FOLLOWED
            for end in range(max(self._num_seen, len(token_ids) - MAX_FOLLOWED) + 1, len(token_ids) + 1):
                self._follow(token_ids, end)
        self._num_seen = len(token_ids)
        return tuple(self._prediction[self._next : self._next + max_tokens]) if self._agrees else ()

    def _follow(self, token_ids: list[int], end: int) -> None:
        """Compare the token before `end` with the prediction, and update the place from which drafts come."""
        is_next = self._next < len(self._prediction) and token_ids[end - 1] == self._prediction[self._next]
        if self._agrees and is_next:
            self._next += 1
            return
        self._agrees = False
        self._look_ahead()
        last = self._next + MAX_AHEAD - self._window_start
        for size in NGRAM_SIZES:
            first = max(0, self._next - size - self._window_start)
            found = self._window.find(_as_text(token_ids[end - size : end]), first, last) if end >= size else -1
            if found >= 0:
                self._next, self._agrees = self._window_start + found + size, True
                return

    def _look_ahead(self) -> None:
        """Have MAX_AHEAD tokens in the window: twice as many at once, so that it is seldom made anew."""
        end = self._window_start + len(self._window)
        if end < min(self._next + MAX_AHEAD, len(self._prediction)):
            self._window_start = max(0, self._next - max(NGRAM_SIZES))
            self._window = _as_text(self._prediction[self._window_start : self._next + 2 * MAX_AHEAD])


def _as_text(token_ids: Many[int]) -> str:
    """Return token ids as a text of one character each. No vocabulary has more tokens than Unicode has characters."""
    return "".join(map(chr, token_ids))
