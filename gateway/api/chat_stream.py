"""The events of a streamed chat completion."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial

import msgspec

from engine.protocol import Usage
from gateway.api.chat_wire import ChatChunk, ChatChunkChoice, ChatDelta
from gateway.api.logprobs import TokenBytes, chat_logprobs
from gateway.api.sse import DONE, TextEvent, event
from gateway.api.usage import usage_out
from gateway.choices import Piece
from gateway.pipeline import Item


class ChatEvents:
    """Encodes the chunks of one reply. chunk: what they have in common."""

    def __init__(
        self,
        chunk: partial[ChatChunk],
        num_choices: int,
        *,
        with_logprobs: bool,
        with_usage: bool,
        to_bytes: TokenBytes,
    ) -> None:
        self._chunk = partial(chunk, usage=None if with_usage else msgspec.UNSET)
        self._with_usage = with_usage
        self._with_logprobs = with_logprobs
        self._to_bytes = to_bytes
        self._num_choices = num_choices
        self._text_events = [
            TextEvent(self._chunk(choices=[ChatChunkChoice(index, ChatDelta(content=""))]), "content")
            for index in range(num_choices)
        ]

    async def of(self, items: AsyncGenerator[Item]) -> AsyncGenerator[bytes]:
        """Each choice's role first, then text as it comes, the finish reasons, and the usage where it was asked for.
        What came together is written together."""
        has_begun = False
        async with aclosing(items):
            async for item in items:
                if isinstance(item, list):
                    data = b"".join(map(self._piece, item))
                    yield data if has_begun else self._roles() + data
                    has_begun = True
                elif isinstance(item, Usage) and self._with_usage:
                    yield event(self._chunk(choices=[], usage=usage_out([item])))
        yield DONE

    def _roles(self) -> bytes:
        delta = ChatDelta(role="assistant", content="")
        return b"".join(
            event(self._chunk(choices=[ChatChunkChoice(index, delta)])) for index in range(self._num_choices)
        )

    def _piece(self, piece: Piece) -> bytes:
        data = b""
        if self._with_logprobs and piece.tokens:
            logprobs = chat_logprobs(piece.tokens, self._to_bytes)
            delta = ChatDelta(content=piece.text)
            data = event(self._chunk(choices=[ChatChunkChoice(piece.index, delta, logprobs=logprobs)]))
        elif piece.text:
            data = self._text_events[piece.index](piece.text)
        if piece.finish_reason is not None:
            data += event(self._chunk(choices=[ChatChunkChoice(piece.index, ChatDelta(), piece.finish_reason)]))
        return data
