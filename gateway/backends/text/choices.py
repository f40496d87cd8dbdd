"""The choices of one request: the engine's token ids become text, log-probabilities and ends.

Knows neither backends nor how an API presents any of it.
"""

from __future__ import annotations

import asyncio
import itertools

import msgspec

from engine.protocol import Delta, FinishReason, Thinking, TokenLogprobs
from gateway.backends.generation import Piece, Token
from gateway.text.detokenizer import Detokenizer
from gateway.text.options import PLAIN, TextStyle
from gateway.text.tokenizer import Tokenizer

PROMPT_TOKENS_AT_ONCE = 512


class Choice:
    """A completion as text, made from its token ids. finish_reason: set once the completion has ended."""

    def __init__(
        self,
        index: int,
        tokenizer: Tokenizer,
        stop: tuple[str, ...],
        *,
        min_tokens: int,
        style: TextStyle = PLAIN,
        thinking: Thinking | None = None,
    ) -> None:
        self.finish_reason: FinishReason | None = None
        self.num_kept_tokens: int | None = None
        """The completion tokens up to the one that completed a stop string; None as long as no stop string was found.
        """
        self._index = index
        self._detokenizer = Detokenizer(
            tokenizer,
            stop,
            min_tokens=min_tokens,
            include_stop=style.include_stop,
            with_special=style.with_special,
            follows_prompt=style.follows_prompt,
            thinking=thinking,
        )
        self._with_token_ids = style.with_token_ids
        self._new_ids: list[int] = []
        self._num_shown_ids = 0
        self._num_tokens = 0
        self._num_shown_chars = 0
        self._pending: list[tuple[Token, int]] = []  # with where they end: their text is not shown yet, or not wholly

    def push(self, delta: Delta) -> Piece | None:
        """Take a delta; return the piece that it adds, None where there is nothing to show yet.

        A delta that comes after the end is ignored.
        """
        if self.finish_reason is not None:
            return None
        text = self._decode(delta)
        self._num_tokens = delta.num_completion_tokens
        if self._with_token_ids:
            self._new_ids += ids_of(delta)
        if self._detokenizer.finished:
            return self._last_piece(text)
        if delta.finish_reason in ("stop", "length"):
            return self.end(delta.finish_reason, text, delta.stop_token_id)
        tokens = self._release(text) if delta.logprobs is not None else []
        if text or tokens or self._new_ids:
            return self._piece(text, tokens)
        return None

    def end(self, reason: FinishReason, text: str = "", stop_token_id: int | None = None) -> Piece:
        """End the choice, as the engine did; return its last piece, with the text that was held back.

        That text may end with a stop string after all.
        """
        text += self._detokenizer.finish(stop_token_id)
        if self._detokenizer.finished:
            return self._last_piece(text)
        self.finish_reason = reason
        self._num_shown_chars += len(text)
        tokens = [token for token, _ in self._pending]
        return self._piece(text, tokens)

    def _piece(self, text: str, tokens: list[Token]) -> Piece:
        return Piece(
            self._index,
            text,
            tokens,
            self.finish_reason,
            token_ids=self._take_ids(),
            num_tokens=self._num_tokens,
            stop_string=self._detokenizer.stop_string,
        )

    def _decode(self, delta: Delta) -> str:
        if delta.logprobs is None:
            return self._detokenizer.push(delta.token_ids)
        text, detokenizer = "", self._detokenizer
        for token_id, logprobs in zip(delta.token_ids, delta.logprobs, strict=True):
            if not detokenizer.finished:
                start = detokenizer.num_chars
                text += detokenizer.push((token_id,))
                end = detokenizer.num_chars + detokenizer.is_within_character
                self._pending.append((Token(token_id, start, logprobs), end))
        return text

    def _last_piece(self, text: str) -> Piece:
        self.finish_reason = "stop"
        self.num_kept_tokens = self._num_tokens = self._detokenizer.num_tokens
        self._num_shown_chars += len(text)
        del self._new_ids[self.num_kept_tokens - self._num_shown_ids :]
        return self._piece(text, self._shown_tokens())

    def _shown_tokens(self) -> list[Token]:
        """Return the pending tokens whose text is shown, wholly or in part, or that have no text."""
        shown = self._num_shown_chars
        before = itertools.takewhile(lambda each: each[0].start < shown or each[1] <= shown, self._pending)
        return [token for token, _ in before]

    def _take_ids(self) -> list[int]:
        ids, self._new_ids = self._new_ids, []
        self._num_shown_ids += len(ids)
        return ids

    def _release(self, text: str) -> list[Token]:
        """Take the pending tokens whose text is complete and that no stop string can still remove, and return them."""
        self._num_shown_chars += len(text)
        released = self._shown_tokens()
        del self._pending[: len(released)]
        return released


def ids_of(delta: Delta) -> list[int]:
    """Return the ids of all tokens that a delta counts: those of the completion, then the one that stopped it."""
    return delta.token_ids if delta.stop_token_id is None else [*delta.token_ids, delta.stop_token_id]


async def prompt_tokens(
    tokenizer: Tokenizer, token_ids: list[int], logprobs: list[TokenLogprobs | None], *, text: str | None
) -> list[Token]:
    """Place a prompt's tokens in its text, special tokens included. Other requests' streams are served in between.

    text: the prompt as the client wrote it, None where it is only known by its tokens. A special token that the
    tokenizer has put around the text, such as BOS, is no part of it and has no width. logprobs: the log-probabilities
    of each token; None for the first one.
    """
    detokenizer = Detokenizer(tokenizer, with_special=True)
    tokens: list[Token] = []
    for token_id, each in zip(token_ids, logprobs, strict=True):
        start = detokenizer.num_chars
        tokens.append(Token(token_id, start, each))
        added = text is not None and token_id in tokenizer.special_ids and not _is_at(tokenizer, token_id, text, start)
        if not added:
            detokenizer.push((token_id,))
        if not len(tokens) % PROMPT_TOKENS_AT_ONCE:
            await asyncio.sleep(0)
    return tokens


def _is_at(tokenizer: Tokenizer, token_id: int, text: str, start: int) -> bool:
    return text.startswith(tokenizer.token_bytes(token_id).decode(), start)


def style_after(prompt_ids: list[int], tokenizer: Tokenizer, style: TextStyle) -> TextStyle:
    """Return the style of the text that follows a prompt.

    A prompt of special tokens alone has no text that could be followed.
    """
    if style.follows_prompt and all(token_id in tokenizer.special_ids for token_id in prompt_ids):
        return msgspec.structs.replace(style, follows_prompt=False)
    return style
