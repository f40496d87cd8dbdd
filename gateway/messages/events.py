"""The events of a streamed message, as Anthropic's clients expect them."""

from __future__ import annotations

import msgspec

from gateway.messages.blocks import OutputBlock
from gateway.messages.errors import MessageError
from gateway.messages.wire import MessageObject, MessageUsage, StopReason


class MessageStart(msgspec.Struct, frozen=True, tag_field="type", tag="message_start"):
    """The first event of a streamed message."""

    message: MessageObject
    """The message without content."""


class BlockStart(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_start"):
    """The beginning of one content block."""

    index: int
    content_block: OutputBlock
    """The block without its text or its arguments."""


class TextDelta(msgspec.Struct, frozen=True, tag_field="type", tag="text_delta"):
    """The next part of a block's text."""

    text: str


class InputJsonDelta(msgspec.Struct, frozen=True, tag_field="type", tag="input_json_delta"):
    """The next part of the arguments of a tool call."""

    partial_json: str


class ThinkingDelta(msgspec.Struct, frozen=True, tag_field="type", tag="thinking_delta"):
    """The next part of the model's thinking."""

    thinking: str


class SignatureDelta(msgspec.Struct, frozen=True, tag_field="type", tag="signature_delta"):
    """The signature of a block of thinking, sent at its end."""

    signature: str


class BlockDelta(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_delta"):
    """The next part of one content block."""

    index: int
    delta: TextDelta | InputJsonDelta | ThinkingDelta | SignatureDelta


class BlockStop(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_stop"):
    """The end of one content block."""

    index: int


class Stop(msgspec.Struct, frozen=True):
    """The end of a message."""

    stop_reason: StopReason
    stop_sequence: str | None
    stop_details: None = None
    container: None = None


class MessageDelta(msgspec.Struct, frozen=True, tag_field="type", tag="message_delta"):
    """The reason why a message ended, and its tokens."""

    delta: Stop
    usage: MessageUsage
    """The tokens of the whole message."""


class MessageStop(msgspec.Struct, frozen=True, tag_field="type", tag="message_stop"):
    """The last event of a streamed message."""


MessageEvent = MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop

StreamedEvent = MessageEvent | MessageError
