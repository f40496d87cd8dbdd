"""The reasoning of a model that thinks before it answers, apart from the answer. Knows no field of an API."""

from __future__ import annotations

import msgspec

from gateway.backends.generation import Piece, Token
from gateway.pipeline.collected import Answer
from gateway.text.thinking import Part, ThinkingText


class Divided(msgspec.Struct, frozen=True):
    """New text of one choice, or all of it, with reasoning and answer apart."""

    reasoning: str = ""
    answer: str = ""
    tokens: list[Token] = []
    """The tokens of the answer, where log-probabilities were asked for."""


class DividedChoice:
    """One choice as it comes, whose text is divided into reasoning and answer."""

    def __init__(self, *, is_open: bool) -> None:
        """Initialize a choice without text. is_open: whether the prompt ended with the beginning of the reasoning."""
        self._thinking = ThinkingText(is_open=is_open)
        self._undecided: list[Token] = []
        """Tokens of which it is not known whether they belong to the answer."""
        self.num_reasoning_tokens = 0
        """The tokens of the reasoning so far."""

    def push(self, piece: Piece) -> Divided:
        """Take the next piece, and return what it adds. Calls and the end of the choice end the reasoning."""
        parts = self._add(piece.text, piece.tokens, piece.num_tokens)
        if piece.calls or piece.finish_reason is not None:
            parts += self._thinking.finish()
        return self._divided(parts)

    def whole(self, answer: Answer) -> Divided:
        """Return all of a choice that has ended; no piece of it may have been pushed."""
        parts: list[Part] = []
        begin, tokens = 0, answer.tokens
        for end, num_tokens in answer.steps or [(len(answer.text), 0)]:
            parts += self._add(answer.text[begin:end], tokens, num_tokens)
            begin, tokens = end, []
        return self._divided(parts + self._thinking.finish())

    def _add(self, text: str, tokens: list[Token], num_tokens: int) -> list[Part]:
        """Add text, and return the parts that are decided now. num_tokens: the tokens of the choice with this text."""
        was_over = self._thinking.is_over
        self._undecided += tokens
        parts = self._thinking.push(text)
        if text and not was_over:
            self.num_reasoning_tokens = num_tokens if self._thinking.has_thought else 0
        return parts

    def _divided(self, parts: list[Part]) -> Divided:
        reasoning = "".join(text for kind, text in parts if kind == "thinking")
        answer = "".join(text for kind, text in parts if kind == "text")
        start, tokens = self._thinking.text_start, list[Token]()
        if start is not None:
            tokens = [token for token in self._undecided if token.start >= start]
            self._undecided = []
        return Divided(reasoning, answer, tokens)
