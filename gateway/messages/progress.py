"""A message as it comes into being: what the model says goes in, events and the message come out.

Pure: no clock, no sockets, and no ids but those that it is given. The laws that `tests/gateway/messages/laws.py` checks
on every stream hold for whatever comes in:

- `message_start` comes first; `message_delta` and `message_stop` come last, unless the stream ends with an error.
- Blocks come one after the other, numbered from 0, at least one; each has its start, its deltas and its stop.
- The deltas of a block together are what the whole message has at its place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from gateway.messages.blocks import OutputBlock, TextBlock, ThinkingBlock, ToolUseBlock
from gateway.messages.events import (
    BlockDelta,
    BlockStart,
    BlockStop,
    InputJsonDelta,
    MessageDelta,
    MessageEvent,
    MessageStart,
    MessageStop,
    SignatureDelta,
    Stop,
    TextDelta,
    ThinkingDelta,
)
from gateway.messages.partial_json import object_of
from gateway.messages.wire import MessageObject, MessageUsage, StopReason
from gateway.text.thinking import Part, ThinkingText
from gateway.text.tools.parser import CallDelta

Kind = Literal["text", "thinking", "call"]


class _Open(msgspec.Struct):
    """The content block that is open."""

    kind: Kind
    begun: OutputBlock
    """The block as it was announced."""
    parts: list[str] = []
    """The texts of the block so far."""


class Progress:
    """The progress of one message. Call `begin` first, `add_text` and `call` as output comes, `stop`, then `finish`."""

    def __init__(
        self,
        initial: MessageObject,
        *,
        call_id: Callable[[int], str],
        sign: Callable[[str], str],
        thinking: ThinkingText | None,
        omits_thinking: bool = False,
    ) -> None:
        """Start with a message without content.

        call_id: returns the id of the call with a number.
        sign: signs thinking.
        thinking: tells thinking from the rest, where the model thinks.
        omits_thinking: True: only the signature of thinking is shown.
        """
        self.message = initial
        """The message by now."""
        self._call_id = call_id
        self._sign = sign
        self._thinking = thinking
        self._omits_thinking = omits_thinking
        self._content: list[OutputBlock] = []
        self._open: _Open | None = None
        self._num_calls = 0

    def begin(self) -> list[MessageEvent]:
        """Return the event `message_start`."""
        return [MessageStart(self.message)]

    def add_reasoning(self, text: str) -> list[MessageEvent]:
        """Return the events for more thinking, of a server that tells it from text; none where it is not wanted."""
        return [] if self._thinking is None or not text else self._parts([("thinking", text)])

    def add_text(self, text: str) -> list[MessageEvent]:
        """Return the events for more text of the model."""
        if not text:
            return []
        return self._parts([("text", text)] if self._thinking is None else self._thinking.push(text))

    def call(self, new: CallDelta) -> list[MessageEvent]:
        """Return the events for the next part of a tool call."""
        events: list[MessageEvent] = []
        if new.name is not None:
            events += self._end_thinking()
            block = ToolUseBlock(self._call_id(self._num_calls), new.name, {})
            self._num_calls += 1
            events += self._begin_block("call", block)
        assert self._open is not None and self._open.kind == "call"
        if new.arguments:
            self._open.parts.append(new.arguments)
            events.append(BlockDelta(self._place, InputJsonDelta(new.arguments)))
        return events

    def stop(self, finish_reason: str, stop_string: str, *, is_window_full: bool) -> list[MessageEvent]:
        """End the content, and return the events for that.

        finish_reason: the engine's. is_window_full: True if a limit that has ended the message was the model's context
        rather than `max_tokens`.
        """
        events = self._end_thinking()
        if self._open is None and not self._content:
            events += self._begin_block("text", TextBlock(""))
        events += self._close()
        reason: StopReason = "end_turn"
        if finish_reason == "length":
            reason = "model_context_window_exceeded" if is_window_full else "max_tokens"
        elif self._num_calls:
            reason = "tool_use"
        elif stop_string:
            reason = "stop_sequence"
        found = stop_string if reason == "stop_sequence" else None
        self._change_message(content=list(self._content), stop_reason=reason, stop_sequence=found)
        return events

    def finish(self, usage: MessageUsage) -> list[MessageEvent]:
        """Return the last events."""
        self._change_message(usage=usage)
        assert self.message.stop_reason is not None
        return [MessageDelta(Stop(self.message.stop_reason, self.message.stop_sequence), usage), MessageStop()]

    @property
    def _place(self) -> int:
        """The index of the content block that is open."""
        return len(self._content)

    def _parts(self, parts: Sequence[Part]) -> list[MessageEvent]:
        events: list[MessageEvent] = []
        for kind, text in parts:
            if self._open is None or self._open.kind != kind:
                block = TextBlock("") if kind == "text" else ThinkingBlock("", "")
                events += self._begin_block(kind, block)
            assert self._open is not None
            self._open.parts.append(text)
            if kind == "thinking" and self._omits_thinking:
                continue
            delta = TextDelta(text) if kind == "text" else ThinkingDelta(text)
            events.append(BlockDelta(self._place, delta))
        return events

    def _end_thinking(self) -> list[MessageEvent]:
        """Return the events for text that was held back until it was certain whether it is thinking."""
        return [] if self._thinking is None else self._parts(self._thinking.finish())

    def _begin_block(self, kind: Kind, block: OutputBlock) -> list[MessageEvent]:
        events = self._close()
        self._open = _Open(kind, block)
        return [*events, BlockStart(self._place, block)]

    def _close(self) -> list[MessageEvent]:
        if self._open is None:
            return []
        place, text, begun = self._place, "".join(self._open.parts), self._open.begun
        events: list[MessageEvent] = []
        block: OutputBlock
        match begun:
            case TextBlock():
                block = TextBlock(text)
            case ThinkingBlock():
                block = ThinkingBlock("" if self._omits_thinking else text, self._sign(text))
                events.append(BlockDelta(place, SignatureDelta(block.signature)))
            case ToolUseBlock():
                block = msgspec.structs.replace(begun, input=object_of(text))
        self._open = None
        self._content.append(block)
        return [*events, BlockStop(place)]

    def _change_message(self, **fields: object) -> None:
        self.message = msgspec.structs.replace(self.message, **fields)
