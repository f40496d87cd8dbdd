"""From the engine's token ids to what the choices of one request have to show: text, log-probabilities, ends.

Knows neither backends nor how an API presents any of it.
"""

from __future__ import annotations

import msgspec

from engine.protocol import Delta, FinishReason, TokenLogprobs
from gateway.text.detokenizer import Detokenizer
from gateway.text.tokenizer import Tokenizer


class Token(msgspec.Struct, frozen=True):
    """One token and where it begins, in characters of its text. logprobs: None for a prompt's first token."""

    token_id: int
    start: int
    logprobs: TokenLogprobs | None


class Piece(msgspec.Struct, frozen=True):
    """What is new of one choice. tokens: those of the text, where log-probabilities were asked for. finish_reason:
    nothing follows."""

    index: int
    text: str
    tokens: list[Token] = []
    finish_reason: FinishReason | None = None


class Choice:
    """One completion on its way to its client. finish_reason: set once it has ended."""

    def __init__(self, index: int, tokenizer: Tokenizer, stop: tuple[str, ...], *, min_tokens: int) -> None:
        self.finish_reason: FinishReason | None = None
        self.num_kept_tokens: int | None = None
        """Set by a stop string: the completion tokens up to the one that completed it."""
        self._index = index
        self._detokenizer = Detokenizer(tokenizer, stop, min_tokens=min_tokens)
        self._num_shown_chars = 0
        self._pending: list[Token] = []  # their text is not shown yet, or not wholly

    def push(self, delta: Delta) -> Piece | None:
        """None where there is nothing to show yet; what comes after the end is ignored."""
        if self.finish_reason is not None:
            return None
        text = self._decode(delta)
        if self._detokenizer.finished:
            return self._stopped(text)
        if delta.finish_reason in ("stop", "length"):
            return self.end(delta.finish_reason, text)
        tokens = self._release(text) if delta.logprobs is not None else []
        return Piece(self._index, text, tokens) if text or tokens else None

    def end(self, reason: FinishReason, text: str = "") -> Piece:
        """The engine has ended it: text, then what was held back, which may end with a stop string after all."""
        text += self._detokenizer.finish().text
        if self._detokenizer.finished:
            return self._stopped(text)
        self.finish_reason = reason
        self._num_shown_chars += len(text)
        return Piece(self._index, text, self._pending, reason)

    def _decode(self, delta: Delta) -> str:
        if delta.logprobs is None:
            return self._detokenizer.push(delta.token_ids).text
        text = ""
        for token_id, logprobs in zip(delta.token_ids, delta.logprobs, strict=True):
            if not self._detokenizer.finished:
                self._pending.append(Token(token_id, self._detokenizer.num_chars, logprobs))
                text += self._detokenizer.push([token_id]).text
        return text

    def _stopped(self, text: str) -> Piece:
        self.finish_reason = "stop"
        self.num_kept_tokens = self._detokenizer.num_tokens
        self._num_shown_chars += len(text)
        tokens = [token for token in self._pending if token.start < self._num_shown_chars]
        return Piece(self._index, text, tokens, "stop")

    def _release(self, text: str) -> list[Token]:
        """The tokens that text completes: none of which a stop string could still take away."""
        self._num_shown_chars += len(text)
        count = len(self._pending)
        if self._detokenizer.is_holding:
            count = sum(token.start < self._num_shown_chars for token in self._pending)
        released, self._pending = self._pending[:count], self._pending[count:]
        return released


def prompt_tokens(tokenizer: Tokenizer, token_ids: list[int], logprobs: list[TokenLogprobs | None]) -> list[Token]:
    """A prompt's tokens as a choice's tokens are shown."""
    detokenizer = Detokenizer(tokenizer)
    tokens = []
    for token_id, each in zip(token_ids, logprobs, strict=True):
        tokens.append(Token(token_id, detokenizer.num_chars, each))
        detokenizer.push([token_id])
    return tokens
