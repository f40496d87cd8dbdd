"""The events of streamed text completions: the choices of every prompt in one stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial

import msgspec

from engine.protocol import Usage
from gateway.api.completions_wire import CompletionChoice, TextCompletion
from gateway.api.logprobs import TextLogprobs, TokenBytes, text_logprobs
from gateway.api.sse import DONE, TextEvent, event
from gateway.api.usage import usage_out
from gateway.choices import Piece, Token
from gateway.pipeline import Item, PromptTokens


class CompletionEvents:
    """Encodes the chunks of one reply. chunk: what they have in common. echoes: each prompt's text, "" where it is not
    to be shown. to_bytes: None where no log-probabilities are to be shown."""

    def __init__(
        self,
        chunk: partial[TextCompletion],
        num_choices: int,
        echoes: Sequence[str],
        *,
        with_usage: bool,
        to_bytes: TokenBytes | None,
    ) -> None:
        self._chunk = partial(chunk, usage=None if with_usage else msgspec.UNSET)
        self._num_choices = num_choices
        self._echoes = echoes
        self._with_usage = with_usage
        self._to_bytes = to_bytes
        self._text_events: dict[int, TextEvent] = {}
        self._prompts: dict[int, list[Token]] = {}

    async def of(self, items: AsyncGenerator[tuple[int, Item]]) -> AsyncGenerator[bytes]:
        """The prompts where they are echoed, text as it comes, the finish reason of each choice, and the usage of all
        where it was asked for. What came together is written together."""
        usages = []
        async with aclosing(items):
            async for prompt, item in items:
                if isinstance(item, list):
                    yield b"".join(self._piece(prompt, piece) for piece in item)
                elif isinstance(item, PromptTokens):
                    self._prompts[prompt] = item.tokens
                else:
                    usages.append(item)
        yield self._end(usages)

    def _piece(self, prompt: int, piece: Piece) -> bytes:
        index, data = prompt * self._num_choices + piece.index, b""
        if index not in self._text_events:
            self._text_events[index] = TextEvent(self._chunk(choices=[CompletionChoice(index, "")]), "text")
            data = self._echo(prompt, index)
        if self._to_bytes is not None and piece.tokens:
            logprobs = text_logprobs(piece.tokens, self._to_bytes, len(self._echoes[prompt]))
            data += self._event(index, piece.text, logprobs=logprobs)
        elif piece.text:
            data += self._text_events[index](piece.text)
        if piece.finish_reason is not None:
            data += self._event(index, "", piece.finish_reason)
        return data

    def _echo(self, prompt: int, index: int) -> bytes:
        if not self._echoes[prompt]:
            return b""
        tokens = self._prompts.get(prompt)
        logprobs = text_logprobs(tokens, self._to_bytes) if tokens is not None and self._to_bytes is not None else None
        return self._event(index, self._echoes[prompt], logprobs=logprobs)

    def _event(
        self, index: int, text: str, finish_reason: str | None = None, logprobs: TextLogprobs | None = None
    ) -> bytes:
        return event(self._chunk(choices=[CompletionChoice(index, text, finish_reason, logprobs)]))

    def _end(self, usages: list[Usage]) -> bytes:
        return (event(self._chunk(choices=[], usage=usage_out(usages))) if self._with_usage else b"") + DONE
