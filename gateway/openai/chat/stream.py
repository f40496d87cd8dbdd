"""The events of a streamed chat completion."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from engine.protocol import Usage
from gateway.backends.generation import Item, Piece
from gateway.http.sse import DONE, TextEvent, event
from gateway.openai.chat.calls import CallShape
from gateway.openai.chat.wire import ChatChunk, ChatChunkChoice, ChatDelta
from gateway.openai.shared.logprobs import TokenBytes, chat_logprobs
from gateway.openai.shared.reasoning import DividedChoice
from gateway.openai.shared.usage import UsageSoFar, usage_of_chunks, usage_out


class ChatEvents:
    """The encoder of one reply's chunks. chunk: the fields that all chunks have in common."""

    def __init__(
        self,
        chunk: partial[ChatChunk],
        num_choices: int,
        *,
        with_logprobs: bool,
        with_usage: bool,
        is_predicted: bool = False,
        prompt_ids: list[int] | None = None,
        to_bytes: TokenBytes,
        calls: CallShape | None = None,
        so_far: UsageSoFar | None = None,
        reasoning: Sequence[DividedChoice] = (),
    ) -> None:
        """Prepare the events of a stream.

        prompt_ids: the token ids of the prompt, where they are to be shown.
        calls: the shape of calls, where the choices may call tools.
        so_far: counts the usage, where every chunk is to show it.
        reasoning: divides each choice into reasoning and answer, where the model thinks.
        with_logprobs: True: chunks show log-probabilities. with_usage: True: the last chunk has the usage.
        is_predicted: True: the client predicted the answer, so the usage tells how much of the prediction was right.
        """
        self._chunk = partial(chunk, usage=usage_of_chunks(so_far, with_usage=with_usage))
        self._so_far = so_far
        self._with_usage = with_usage
        self._is_predicted = is_predicted
        self._prompt_ids = prompt_ids
        self._with_logprobs = with_logprobs
        self._to_bytes = to_bytes
        self._num_choices = num_choices
        self._calls = calls
        self._has_begun = False
        self._has_calls: set[int] = set()
        self._reasoning = reasoning
        self._text_events = [
            TextEvent(self._chunk(choices=[ChatChunkChoice(index, ChatDelta(content=""))]), "content")
            for index in range(num_choices)
        ]

    @property
    def empty(self) -> bytes:
        """An event without text, which serves as the unit of padding."""
        return self._text_events[0]("")

    async def encode(self, item: Item) -> bytes:
        """Return the events of an item: roles first, then text, finish reasons, and usage if the client asked for it.

        Pieces that came together are one write.
        """
        if isinstance(item, list):
            roles = b"" if self._has_begun else self._roles()
            self._has_begun = True
            return roles + b"".join(map(self._piece, item))
        if isinstance(item, Usage) and self._with_usage:
            num_reasoning = sum(each.num_reasoning_tokens for each in self._reasoning)
            usage = usage_out([item], is_predicted=self._is_predicted, num_reasoning_tokens=num_reasoning)
            return event(self._chunk(choices=[], usage=usage))
        return b""

    def end(self) -> bytes:
        """Return the event `[DONE]`, with which OpenAI ends a stream."""
        return DONE

    def _roles(self) -> bytes:
        # A client that gets calls and no text must not end up with an empty text.
        delta = ChatDelta(role="assistant", content="" if self._calls is None else None, refusal=None)
        chunks = [self._chunk(choices=[ChatChunkChoice(index, delta)]) for index in range(self._num_choices)]
        if self._prompt_ids is not None:
            chunks[0] = msgspec.structs.replace(chunks[0], prompt_token_ids=self._prompt_ids)
        return b"".join(map(event, chunks))

    def _piece(self, piece: Piece) -> bytes:
        data, text, tokens, reasoning = b"", piece.text, piece.tokens, piece.reasoning
        if self._so_far is not None:
            self._chunk = partial(self._chunk, usage=self._so_far.add(piece.index, piece))
        if self._reasoning:
            divided = self._reasoning[piece.index].push(piece)
            text, tokens, reasoning = divided.answer, divided.tokens, divided.reasoning
        if reasoning:
            data = event(self._chunk(choices=[ChatChunkChoice(piece.index, ChatDelta(reasoning_content=reasoning))]))
        if (self._with_logprobs and tokens) or piece.token_ids:
            logprobs = chat_logprobs(tokens, self._to_bytes) if self._with_logprobs else None
            token_ids = piece.token_ids if self._prompt_ids is not None else msgspec.UNSET
            delta = ChatDelta(content=text) if text or self._calls is None else ChatDelta()
            choice = ChatChunkChoice(piece.index, delta, None, logprobs, token_ids)
            data += event(self._chunk(choices=[choice]))
        elif text and self._so_far is not None:
            data += event(self._chunk(choices=[ChatChunkChoice(piece.index, ChatDelta(content=text))]))
        elif text:
            data += self._text_events[piece.index](text)
        if piece.calls:
            data += self._call_events(piece)
        if piece.finish_reason is not None:
            data += self._end_choice(piece.index, piece.finish_reason)
        return data

    def _call_events(self, piece: Piece) -> bytes:
        assert self._calls is not None
        self._has_calls.add(piece.index)
        deltas = [self._calls.delta(piece.index, new) for new in piece.calls]
        return b"".join(event(self._chunk(choices=[ChatChunkChoice(piece.index, delta)])) for delta in deltas)

    def _end_choice(self, index: int, reason: str) -> bytes:
        delta = ChatDelta()
        if self._calls is not None:
            has_calls = index in self._has_calls
            reason = self._calls.finish_reason(reason, has_calls=has_calls)
            # A choice without text and without calls has an empty text, unless it was cut off before the call that had
            # to come.
            delta = ChatDelta() if has_calls or self._calls.must_call else ChatDelta(content="")
        return event(self._chunk(choices=[ChatChunkChoice(index, delta, reason)]))
