"""The reply to a request for a message, whole or as the bytes of a stream."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from engine.protocol import Usage
from gateway.backends.generation import Item, Piece
from gateway.domain.errors import GatewayError
from gateway.http.sse import named_event
from gateway.messages.errors import message_error
from gateway.messages.events import MessageEvent
from gateway.messages.progress import Progress
from gateway.messages.wire import MessageObject, MessageUsage
from gateway.openai.shared.replies import call_id
from gateway.pipeline.collected import Collected
from gateway.text.thinking import ThinkingText

_CALL_PREFIX = "toolu_"


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to one request."""

    request_id: str
    initial: MessageObject
    """The message without content."""
    sign: Callable[[str], str]
    """The function that signs thinking."""
    splits_thinking: bool
    """True where the reply's text may begin with thinking: the model was asked to think, or made to begin so."""
    is_thinking: bool
    """True where the prompt already ended with the beginning of thinking."""
    omits_thinking: bool = False
    """True where the client wants the signature of thinking alone."""
    may_fill_context: bool
    """True where the completion is bounded by the rest of the model's context rather than by `max_tokens`."""

    def progress(self) -> Progress:
        """Return the message at its beginning, without content."""
        return Progress(
            self.initial,
            call_id=partial(_tool_use_id, self.request_id),
            sign=self.sign,
            thinking=ThinkingText(is_open=self.is_thinking) if self.splits_thinking else None,
            omits_thinking=self.omits_thinking,
        )

    def whole(self, collected: Collected) -> MessageObject:
        """Return the reply as one object."""
        progress, answer = self.progress(), collected.answers[0]
        progress.add_reasoning(answer.reasoning)
        progress.add_text(answer.text)
        for new in answer.calls:
            progress.call(new)
        progress.stop(answer.finish_reason, answer.stop_string, is_window_full=self.may_fill_context)
        progress.finish(usage_of(collected.usage))
        return progress.message


class MessageEvents:
    """The encoder of a streamed message."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._progress = reply.progress()
        self._has_begun = False

    async def encode(self, item: Item) -> bytes:
        """Return the events for items that came together, in one write."""
        if isinstance(item, list):
            events = [] if self._has_begun else self._progress.begin()
            self._has_begun = True
            for piece in item:
                events += self._events(piece)
            return b"".join(map(_encoded, events))
        if isinstance(item, Usage):
            return b"".join(map(_encoded, self._progress.finish(usage_of(item))))
        return b""

    def end(self) -> bytes:
        """Return nothing: the last item brings the last event."""
        return b""

    def failed(self, error: GatewayError) -> bytes:
        """Return the event that ends a stream after a failure."""
        _, body = message_error(error, error.status, self._reply.request_id)
        return named_event("error", body)

    def _events(self, piece: Piece) -> list[MessageEvent]:
        events = self._progress.add_reasoning(piece.reasoning)
        events += self._progress.add_text(piece.text)
        for new in piece.calls:
            events += self._progress.call(new)
        if piece.finish_reason is not None:
            is_full = self._reply.may_fill_context
            events += self._progress.stop(piece.finish_reason, piece.stop_string, is_window_full=is_full)
        return events


def usage_of(usage: Usage) -> MessageUsage:
    """Return an engine's count as replies show it: tokens that were found in the cache are counted apart."""
    return MessageUsage(
        input_tokens=usage.prompt_tokens - usage.cached_tokens,
        output_tokens=usage.completion_tokens,
        cache_read_input_tokens=usage.cached_tokens,
    )


def _encoded(event: MessageEvent) -> bytes:
    name = event.__struct_config__.tag
    assert isinstance(name, str)
    return named_event(name, event)


def _tool_use_id(request_id: str, index: int) -> str:
    return _CALL_PREFIX + call_id(request_id, 0, index).removeprefix("call_")
