"""The items of a run put together: each choice as a whole. Knows nothing of how an API shows a choice."""

from __future__ import annotations

import msgspec

from engine.protocol import Usage
from gateway.backends.generation import Item, PromptTokens, Token
from gateway.text.tools.parser import CallDelta


class Answer(msgspec.Struct):
    """One whole choice."""

    text: str = ""
    tokens: list[Token] = []
    finish_reason: str = ""
    calls: list[CallDelta] = []
    """The deltas of the choice's calls, in order."""
    token_ids: list[int] = []
    """The choice's token ids, where they were asked for."""
    steps: list[tuple[int, int]] = []
    """The lengths of the text in characters and in tokens after each piece, for a model that thinks."""
    stop_string: str = ""
    """The stop string that ended the choice; "" where none did, or where that is not known."""
    reasoning: str = ""
    """The reasoning before the text, where a server of another maker tells it apart."""


class Collected(msgspec.Struct, frozen=True):
    """All choices of one prompt."""

    answers: list[Answer]
    prompt_tokens: list[Token]
    """The tokens of the prompt, where their log-probabilities were asked for."""
    usage: Usage


class Collector:
    """The collector of one prompt's items, which puts choices together."""

    def __init__(self, num_choices: int, *, counts_steps: bool = False) -> None:
        """Prepare to collect items. counts_steps: True: answers have their `steps`."""
        self._answers = [Answer() for _ in range(num_choices)]
        self._texts: list[list[str]] = [[] for _ in range(num_choices)]
        self._reasoning: list[list[str]] = [[] for _ in range(num_choices)]
        self._lengths = [0] * num_choices
        self._prompt_tokens: list[Token] = []
        self._counts_steps = counts_steps

    def add(self, item: Item) -> Collected | None:
        """Add one item. Return the collected choices after the last item, else None."""
        if isinstance(item, Usage):
            for answer, texts, reasoning in zip(self._answers, self._texts, self._reasoning, strict=True):
                answer.text, answer.reasoning = "".join(texts), "".join(reasoning)
            return Collected(self._answers, self._prompt_tokens, item)
        if isinstance(item, PromptTokens):
            self._prompt_tokens = item.tokens
            return None
        for piece in item:
            self._texts[piece.index].append(piece.text)
            answer = self._answers[piece.index]
            if piece.tokens:
                answer.tokens += piece.tokens
            if piece.calls:
                answer.calls += piece.calls
            if piece.token_ids:
                answer.token_ids += piece.token_ids
            if piece.reasoning:
                self._reasoning[piece.index].append(piece.reasoning)
            if piece.finish_reason:
                answer.finish_reason, answer.stop_string = piece.finish_reason, piece.stop_string
            if self._counts_steps:
                self._lengths[piece.index] += len(piece.text)
                answer.steps.append((self._lengths[piece.index], piece.num_tokens))
        return None
