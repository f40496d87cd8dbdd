"""Items of responses: as clients send them, all in one shape, and as replies and lists show them.

An item that a reply or a list shows may be sent again as input.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gateway.http.fields import Name
from gateway.openai.shared.logprobs import ChatTokenLogprob

MAX_ITEMS = 4096

ItemStatus = Literal["in_progress", "completed", "incomplete"]
Phase = Literal["commentary", "final_answer"]
CallId = Annotated[str, Meta(min_length=1, max_length=256)]


class InputPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of an item's content. Only text is served."""

    type: Literal[
        "input_text",
        "output_text",
        "refusal",
        "reasoning_text",
        "summary_text",
        "input_image",
        "input_file",
        "input_audio",
    ]
    text: str | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None
    """A field of replies, which has no effect when a client sends it back."""
    image_url: Any = None
    detail: Any = None
    file_id: Any = None
    file_data: Any = None
    file_url: Any = None
    filename: Any = None
    input_audio: Any = None
    prompt_cache_breakpoint: Any = None


class InputItem(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An item of the input: a message, a call of a tool, the output of a call, reasoning, or a reference to an item."""

    type: Literal[
        "message",
        "function_call",
        "function_call_output",
        "custom_tool_call",
        "custom_tool_call_output",
        "reasoning",
        "compaction",
        "item_reference",
    ] = "message"
    id: Annotated[str, Meta(max_length=256)] | None = None
    """The client's own label for the item; for an `item_reference`, the id of a stored item."""
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: str | Annotated[list[InputPart], Meta(max_length=MAX_ITEMS)] | None = None
    status: ItemStatus | None = None
    """A field of replies, which has no effect when a client sends it back."""
    phase: Phase | None = None
    """A label that is stored and shown with the message, and has no effect on the model."""
    call_id: CallId | None = None
    name: Name | None = None
    arguments: str | None = None
    """The arguments of a function call, as the model wrote them."""
    input: str | None = None
    """The input of a custom tool's call."""
    output: str | Annotated[list[InputPart], Meta(max_length=MAX_ITEMS)] | None = None
    summary: Annotated[list[InputPart], Meta(max_length=MAX_ITEMS)] | None = None
    encrypted_content: str | None = None
    """The summary of a `compaction`, or the thinking of a `reasoning`, as the server sealed it."""
    namespace: Name | None = None
    """The namespace of the tool that is called."""
    caller: Any = None


class InputText(msgspec.Struct, frozen=True, tag_field="type", tag="input_text"):
    """Text of a prompt."""

    text: str


class OutputText(msgspec.Struct, frozen=True, tag_field="type", tag="output_text"):
    """Text of an answer."""

    text: str
    annotations: list[dict[str, Any]] = []
    logprobs: list[ChatTokenLogprob] = []
    """The log-probabilities of the text's tokens, where they were asked for."""


class Refusal(msgspec.Struct, frozen=True, tag_field="type", tag="refusal"):
    """A refusal of an earlier turn, as the client sends it back."""

    refusal: str


class SummaryText(msgspec.Struct, frozen=True, tag_field="type", tag="summary_text"):
    """A summary of thinking. This server makes none; the client may send one back."""

    text: str


class ReasoningText(msgspec.Struct, frozen=True, tag_field="type", tag="reasoning_text"):
    """Text of the model's thinking."""

    text: str


class MessageItem(msgspec.Struct, frozen=True, tag_field="type", tag="message"):
    """A message of the input or the output."""

    id: str
    status: ItemStatus
    role: Literal["user", "assistant", "system", "developer"]
    content: list[InputText | OutputText | Refusal]
    phase: Phase | UnsetType = UNSET


class FunctionCallItem(msgspec.Struct, frozen=True, tag_field="type", tag="function_call"):
    """A call of a function."""

    id: str
    status: ItemStatus
    call_id: str
    """The id that the output of the call names."""
    name: str
    arguments: str
    """JSON text that fits the schema of the function, unless the response is incomplete."""
    namespace: str | UnsetType = UNSET
    """The namespace of the function, where it has one."""


class CustomToolCallItem(msgspec.Struct, frozen=True, tag_field="type", tag="custom_tool_call"):
    """A call of a custom tool."""

    id: str
    status: ItemStatus
    call_id: str
    name: str
    input: str
    """Text in the tool's format, unless the response is incomplete."""
    namespace: str | UnsetType = UNSET


class FunctionCallOutputItem(msgspec.Struct, frozen=True, tag_field="type", tag="function_call_output"):
    """The result of a function call, which the client sent."""

    id: str
    status: ItemStatus
    call_id: str
    output: str | list[InputText]


class CustomToolCallOutputItem(msgspec.Struct, frozen=True, tag_field="type", tag="custom_tool_call_output"):
    """The result of a custom tool call, which the client sent."""

    id: str
    status: ItemStatus
    call_id: str
    output: str | list[InputText]


class ReasoningItem(msgspec.Struct, frozen=True, tag_field="type", tag="reasoning"):
    """The model's thinking before its answer."""

    id: str
    status: ItemStatus
    summary: list[SummaryText] = []
    content: list[ReasoningText] = []
    """The model's thinking before its answer."""
    encrypted_content: str | UnsetType = UNSET
    """The sealed thinking, where the client asked for it. The client sends it back unchanged, to the same base model.
    """


class CompactionItem(msgspec.Struct, frozen=True, tag_field="type", tag="compaction"):
    """The summary of a conversation, sealed."""

    id: str
    encrypted_content: str
    """The sealed summary. The client sends it back unchanged, to the same base model."""


OutputItem = MessageItem | ReasoningItem | FunctionCallItem | CustomToolCallItem
"""The items that a model makes."""

Item = OutputItem | FunctionCallOutputItem | CustomToolCallOutputItem | CompactionItem
"""An item as it is stored and listed."""
