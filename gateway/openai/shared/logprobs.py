"""Log-probabilities as OpenAI's replies show them: chat's, with the bytes of each token, and text completions'."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from engine.protocol import TokenLogprobs
from gateway.backends.generation import Token
from gateway.openai.shared.slices import encode_parts

LEAST_LOGPROB = -9999.0
"""The number that JSON shows for the logarithm of zero, which JSON cannot write; OpenAI's replies use it too."""

TOKENS_AT_ONCE = 64

TokenBytes = Callable[[int], bytes]


class TopLogprob(msgspec.Struct, frozen=True):
    """A token that was possible, and its log-probability."""

    token: str
    """The text of the token. Replacement characters stand for incomplete characters."""
    logprob: float
    bytes: list[int]
    """The exact bytes of the token."""


class ChatTokenLogprob(msgspec.Struct, frozen=True):
    """A generated token with its log-probability, and the likeliest tokens of the same place."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """The log-probabilities of the tokens of an answer."""

    content: list[ChatTokenLogprob]
    refusal: None = None


class TextLogprobs(msgspec.Struct, frozen=True):
    """The log-probabilities of tokens, in four lists of the same length."""

    tokens: list[str]
    token_logprobs: list[float | None]
    """The log-probability of each token; null for the first token of an echoed prompt."""
    top_logprobs: list[dict[str, float] | None]
    """The likeliest tokens in each place, the generated token included; null for the first token of an echoed
    prompt."""
    text_offset: list[int]

    def followed_by(self, other: TextLogprobs) -> TextLogprobs:
        """Return these lists, followed by the lists of `other`."""
        return TextLogprobs(
            self.tokens + other.tokens,
            self.token_logprobs + other.token_logprobs,
            self.top_logprobs + other.top_logprobs,
            self.text_offset + other.text_offset,
        )


class PromptLogprob(msgspec.Struct, frozen=True):
    """The log-probability of a token in the prompt."""

    logprob: float
    rank: int | None
    """The rank among all tokens, from 1; null for a token beyond the number that was asked for."""
    decoded_token: str


PromptLogprobs = list[dict[int, PromptLogprob] | None]
"""The log-probabilities of a prompt as vLLM shows them: for each token those of the most likely tokens and of the token
itself, by id; null for the first token."""


def token_namer(to_bytes: TokenBytes, *, by_id: bool | None) -> TokenBytes:
    """Return the function that names tokens in lists of log-probabilities.

    by_id: True: by `token_id:` and the id, as in vLLM; False or None: by their bytes.
    """
    return _id_as_bytes if by_id else to_bytes


def _id_as_bytes(token_id: int) -> bytes:
    return id_name(token_id).encode()


def id_name(token_id: int) -> str:
    """Return the name `token_id:` and the id, for a token that its text does not distinguish."""
    return f"token_id:{token_id}"


async def prompt_logprobs(tokens: Sequence[Token], to_bytes: TokenBytes) -> PromptLogprobs:
    """Return the log-probabilities of a prompt, those of each token as encoded JSON (`encode_parts`)."""
    return await encode_parts(
        None if token.logprobs is None else _prompt_token(token, token.logprobs, to_bytes) for token in tokens
    )


def chat_logprobs(tokens: Sequence[Token], to_bytes: TokenBytes) -> ChatLogprobs:
    """Return the log-probabilities of tokens in the form of chat completions."""
    return ChatLogprobs([_chat_token(token, to_bytes) for token in tokens])


async def whole_chat_logprobs(tokens: Sequence[Token], to_bytes: TokenBytes) -> ChatLogprobs:
    """Return the log-probabilities of a whole choice, which may be megabytes.

    Each token's log-probabilities are encoded as JSON one after the other (`encode_parts`), so that a large choice does
    not keep other requests waiting.
    """
    return ChatLogprobs(await encode_parts(_chat_token(token, to_bytes) for token in tokens))


def text_logprobs(tokens: Sequence[Token], to_bytes: TokenBytes, offset: int = 0) -> TextLogprobs:
    """Return the log-probabilities of tokens in the form of text completions.

    offset: the number of characters that the choice's text has before these tokens.
    """
    shown = TextLogprobs([], [], [], [])
    for token in tokens:
        logprobs = token.logprobs
        shown.tokens.append(token_name(to_bytes(token.token_id)))
        shown.text_offset.append(offset + token.start)
        shown.token_logprobs.append(None if logprobs is None else _finite(logprobs.logprob))
        shown.top_logprobs.append(None if logprobs is None else _top(token.token_id, logprobs, to_bytes))
    return shown


def token_name(raw: bytes) -> str:
    r"""Return the name of a token in text completions: its text, or its bytes where they are no whole characters.

    Bytes are shown as OpenAI does, such as `bytes:\xf0\x9f`.
    """
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(chr(byte) if _is_plain(byte) else f"\\x{byte:02x}" for byte in raw)


def _is_plain(byte: int) -> bool:
    """Tell whether a byte is shown as a character: printable ASCII except the backslash."""
    return 0x20 <= byte < 0x7F and byte != 0x5C


def _top(token_id: int, logprobs: TokenLogprobs, to_bytes: TokenBytes) -> dict[str, float]:
    """Return the most likely tokens and the chosen one, by name.

    If several tokens have one name, as in a byte-fallback vocabulary, the chosen or else the likeliest one keeps it;
    the others are called `token_id:` and their id.
    """
    own = token_name(to_bytes(token_id))
    top: dict[str, float] = {}
    for other_id, logprob in zip(logprobs.top_token_ids, logprobs.top_logprobs, strict=True):
        name = own if other_id == token_id else token_name(to_bytes(other_id))
        if other_id != token_id and (name == own or name in top):
            name = id_name(other_id)
        top[name] = _finite(logprob)
    top.setdefault(own, _finite(logprobs.logprob))
    return top


async def whole_text_logprobs(tokens: Sequence[Token], to_bytes: TokenBytes, offset: int = 0) -> TextLogprobs:
    """Return the log-probabilities of a whole choice or prompt.

    The most likely tokens of each place are encoded as JSON already (`encode_parts`).

    offset: the place of the first token in the whole text, in characters.
    """
    whole = TextLogprobs([], [], [], [])
    for first in range(0, len(tokens), TOKENS_AT_ONCE):
        part = text_logprobs(tokens[first : first + TOKENS_AT_ONCE], to_bytes, offset)
        whole.tokens.extend(part.tokens)
        whole.token_logprobs.extend(part.token_logprobs)
        whole.top_logprobs.extend(await encode_parts(part.top_logprobs))
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
