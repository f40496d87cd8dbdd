"""Log-probabilities as OpenAI's replies show them: chat's, with the bytes of each token, and text completions'."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from engine.protocol import TokenLogprobs
from gateway.backends.generation import Token
from gateway.openai.shared.slices import encoded

LEAST_LOGPROB = -9999.0
"""What JSON shows of a probability of zero, which it has no number for; OpenAI's own replies do the same."""

TOKENS_AT_ONCE = 64

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


class PromptLogprob(msgspec.Struct, frozen=True):
    """rank: among all tokens, from 1; null beyond those that were asked for."""

    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobs = list[dict[int, PromptLogprob] | None]
"""As vLLM shows them: of each token of the prompt the most likely ones and itself, by id; null for the first."""


async def prompt_logprobs(tokens: Sequence[Token], to_bytes: TokenBytes) -> PromptLogprobs:
    """Encoded, as in `whole_chat_logprobs`."""
    return await encoded(
        None if token.logprobs is None else _prompt_token(token, token.logprobs, to_bytes) for token in tokens
    )


def chat_logprobs(tokens: Sequence[Token], to_bytes: TokenBytes) -> ChatLogprobs:
    return ChatLogprobs([_chat_token(token, to_bytes) for token in tokens])


async def whole_chat_logprobs(tokens: Sequence[Token], to_bytes: TokenBytes) -> ChatLogprobs:
    """Of a whole choice, which may be megabytes: each token's are encoded already, see `slices`."""
    return ChatLogprobs(await encoded(_chat_token(token, to_bytes) for token in tokens))


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


async def whole_text_logprobs(tokens: Sequence[Token], to_bytes: TokenBytes, offset: int = 0) -> TextLogprobs:
    """Of a whole choice or prompt; the most likely tokens are encoded, as in `whole_chat_logprobs`."""
    whole = TextLogprobs([], [], [], [])
    for first in range(0, len(tokens), TOKENS_AT_ONCE):
        part = text_logprobs(tokens[first : first + TOKENS_AT_ONCE], to_bytes, offset)
        whole.tokens.extend(part.tokens)
        whole.token_logprobs.extend(part.token_logprobs)
        whole.top_logprobs.extend(await encoded(part.top_logprobs))
        whole.text_offset.extend(part.text_offset)
        await asyncio.sleep(0)
    return whole


def _chat_token(token: Token, to_bytes: TokenBytes) -> ChatTokenLogprob:
    assert token.logprobs is not None
    raw, logprobs = to_bytes(token.token_id), token.logprobs
    top = []
    for token_id, logprob in zip(logprobs.top_token_ids, logprobs.top_logprobs, strict=True):
        other = to_bytes(token_id)
        top.append(TopLogprob(_text(other), _finite(logprob), list(other)))
    return ChatTokenLogprob(_text(raw), _finite(logprobs.logprob), list(raw), top)


def _prompt_token(token: Token, logprobs: TokenLogprobs, to_bytes: TokenBytes) -> dict[int, PromptLogprob]:
    shown = {
        token_id: PromptLogprob(_finite(logprob), rank, _text(to_bytes(token_id)))
        for rank, (token_id, logprob) in enumerate(
            zip(logprobs.top_token_ids, logprobs.top_logprobs, strict=True), start=1
        )
    }
    shown.setdefault(token.token_id, PromptLogprob(_finite(logprobs.logprob), None, _text(to_bytes(token.token_id))))
    return shown


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")


def _finite(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)
