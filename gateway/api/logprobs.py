"""Log-probabilities as OpenAI's replies show them: chat's, with the bytes of each token, and text completions'."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from gateway.choices import Token

LEAST_LOGPROB = -9999.0
"""What JSON shows of a probability of zero, which it has no number for; OpenAI's own replies do the same."""

TokenBytes = Callable[[int], bytes]


class TopLogprob(msgspec.Struct, frozen=True):
    """token: replacement characters stand for what is not whole; bytes: exactly."""

    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True):
    content: list[ChatTokenLogprob]
    refusal: None = None


class TextLogprobs(msgspec.Struct, frozen=True):
    """Four lists of one length. token_logprobs and top_logprobs are null for the first token of an echoed prompt."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]

    def followed_by(self, other: TextLogprobs) -> TextLogprobs:
        return TextLogprobs(
            self.tokens + other.tokens,
            self.token_logprobs + other.token_logprobs,
            self.top_logprobs + other.top_logprobs,
            self.text_offset + other.text_offset,
        )


def chat_logprobs(tokens: Sequence[Token], to_bytes: TokenBytes) -> ChatLogprobs:
    return ChatLogprobs([_chat_token(token, to_bytes) for token in tokens])


def text_logprobs(tokens: Sequence[Token], to_bytes: TokenBytes, offset: int = 0) -> TextLogprobs:
    """offset: characters that precede the tokens' text in the choice's."""
    shown = TextLogprobs([], [], [], [])
    for token in tokens:
        text, logprobs = _text(to_bytes(token.token_id)), token.logprobs
        shown.tokens.append(text)
        shown.text_offset.append(offset + token.start)
        shown.token_logprobs.append(None if logprobs is None else _finite(logprobs.logprob))
        top: dict[str, float] | None = None
        if logprobs is not None:
            top = {}
            for token_id, logprob in zip(logprobs.top_token_ids, logprobs.top_logprobs, strict=True):
                top.setdefault(_text(to_bytes(token_id)), _finite(logprob))
            top.setdefault(text, _finite(logprobs.logprob))
        shown.top_logprobs.append(top)
    return shown


def _chat_token(token: Token, to_bytes: TokenBytes) -> ChatTokenLogprob:
    assert token.logprobs is not None
    raw, logprobs = to_bytes(token.token_id), token.logprobs
    top = []
    for token_id, logprob in zip(logprobs.top_token_ids, logprobs.top_logprobs, strict=True):
        other = to_bytes(token_id)
        top.append(TopLogprob(_text(other), _finite(logprob), list(other)))
    return ChatTokenLogprob(_text(raw), _finite(logprobs.logprob), list(raw), top)


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")


def _finite(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)
