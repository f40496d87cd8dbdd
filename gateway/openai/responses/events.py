"""The events of a streamed response, one struct for each kind."""

from __future__ import annotations

import msgspec

from gateway.http.error_body import ErrorDetail
from gateway.openai.responses.items import OutputItem, OutputText, ReasoningText
from gateway.openai.responses.wire import ResponseObject
from gateway.openai.shared.logprobs import ChatTokenLogprob


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """The base of all events: each has its number in the stream."""

    sequence_number: int
    """The number of the event in its stream, from 0, without a gap."""


class _OfResponse(Event, frozen=True, kw_only=True, tag_field="type"):
    response: ResponseObject


class Created(_OfResponse, frozen=True, kw_only=True, tag="response.created"):
    """The first event of a stream: the response exists."""


class Queued(_OfResponse, frozen=True, kw_only=True, tag="response.queued"):
    """The event for a response that waits to be run in the background."""


class InProgress(_OfResponse, frozen=True, kw_only=True, tag="response.in_progress"):
    """The event for a response whose generation begins."""


class Completed(_OfResponse, frozen=True, kw_only=True, tag="response.completed"):
    """The last event of a response that is complete."""


class Incomplete(_OfResponse, frozen=True, kw_only=True, tag="response.incomplete"):
    """The last event of a response that a limit ended early."""


class Failed(_OfResponse, frozen=True, kw_only=True, tag="response.failed"):
    """The last event of a response that failed, or that was cancelled, as its status says."""


class _OfItem(Event, frozen=True, kw_only=True, tag_field="type"):
    output_index: int
    """The place of the item in the response's output."""


class ItemAdded(_OfItem, frozen=True, kw_only=True, tag="response.output_item.added"):
    """The beginning of one item of the output."""

    item: OutputItem


class ItemDone(_OfItem, frozen=True, kw_only=True, tag="response.output_item.done"):
    """The end of one item of the output, with the whole item."""

    item: OutputItem


class _OfPart(_OfItem, frozen=True, kw_only=True, tag_field="type"):
    item_id: str
    content_index: int = 0


class PartAdded(_OfPart, frozen=True, kw_only=True, tag="response.content_part.added"):
    """The beginning of one part of an item's content."""

    part: OutputText | ReasoningText


class PartDone(_OfPart, frozen=True, kw_only=True, tag="response.content_part.done"):
    """The end of one part of an item's content, with the whole part."""

    part: OutputText | ReasoningText


class TextDelta(_OfPart, frozen=True, kw_only=True, tag="response.output_text.delta"):
    """The next part of the answer's text."""

    delta: str
    logprobs: list[ChatTokenLogprob] = []


class TextDone(_OfPart, frozen=True, kw_only=True, tag="response.output_text.done"):
    """The end of the answer's text, with the whole text."""

    text: str
    logprobs: list[ChatTokenLogprob] = []


class ReasoningDelta(_OfPart, frozen=True, kw_only=True, tag="response.reasoning_text.delta"):
    """The next part of the model's thinking."""

    delta: str


class ReasoningDone(_OfPart, frozen=True, kw_only=True, tag="response.reasoning_text.done"):
    """The end of the model's thinking, with all of it."""

    text: str


class ArgumentsDelta(_OfItem, frozen=True, kw_only=True, tag="response.function_call_arguments.delta"):
    """The next part of the arguments of a function call."""

    item_id: str
    delta: str


class ArgumentsDone(_OfItem, frozen=True, kw_only=True, tag="response.function_call_arguments.done"):
    """The end of the arguments of a function call, with all of them."""

    item_id: str
    name: str
    arguments: str


class InputDelta(_OfItem, frozen=True, kw_only=True, tag="response.custom_tool_call_input.delta"):
    """The next part of the input of a custom tool call."""

    item_id: str
    delta: str


class InputDone(_OfItem, frozen=True, kw_only=True, tag="response.custom_tool_call_input.done"):
    """The end of the input of a custom tool call, with all of it."""

    item_id: str
    input: str


class Error(Event, frozen=True, kw_only=True, tag="error"):
    """A failure in the middle of a stream, in both shapes that clients read: `response.failed` follows."""

    code: str | None
    message: str
    param: str | None
    error: ErrorDetail


Delta = TextDelta | ReasoningDelta | ArgumentsDelta | InputDelta
"""The events that carry new text, whose sizes would tell how long tokens are."""

ResponseEvent = (
    Created
    | Queued
    | InProgress
    | ItemAdded
    | PartAdded
    | TextDelta
    | TextDone
    | PartDone
    | ReasoningDelta
    | ReasoningDone
    | ArgumentsDelta
    | ArgumentsDone
    | InputDelta
    | InputDone
    | ItemDone
    | Error
    | Completed
    | Incomplete
    | Failed
)
