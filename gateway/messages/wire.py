"""Messages as Anthropic's clients send and expect them: structs, bounds, and the fields that have no effect here."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gateway.http.fields import NumTokens, StopString
from gateway.messages.blocks import MAX_BLOCKS, CacheControl, InputBlock, OutputBlock, SystemBlock
from gateway.messages.tools_wire import MAX_TOOLS, ToolChoice, ToolParam

MAX_MESSAGES = 4096
MIN_THINKING_TOKENS = 1024

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]
Effort = Literal["low", "medium", "high", "xhigh", "max"]


class MessageParam(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A turn of a conversation. A system message in the midst of it stays where it is."""

    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[InputBlock], Meta(max_length=MAX_BLOCKS)]


class Thinking(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The wish that the model thinks or not before it answers, where its chat template has a place for that."""

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: Annotated[int, Meta(ge=MIN_THINKING_TOKENS, le=2**31 - 1)] | None = None
    """A number below `max_tokens`, which alone bounds the message: thinking has no bound of its own here."""
    display: Literal["summarized", "omitted"] | None = None
    """`omitted` to leave the text of thinking out of the reply: its signature holds it, sealed. Else it is shown as it
    is."""


class OutputFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The form that the text of the message must have."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The effort and the form of the answer that the client asks for."""

    effort: Effort | None = None
    """The effort that the chat template is told, where it reads one."""
    format: OutputFormat | None = None


class ThinkingTurns(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The number of last turns whose thinking is kept."""

    type: Literal["thinking_turns"]
    value: Annotated[int, Meta(ge=1, le=MAX_MESSAGES)]


class ContextEdit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A change of the conversation before the model reads it.

    The thinking of all turns but the last ones is left out.
    """

    type: Literal["clear_thinking_20251015"]
    keep: Literal["all"] | ThinkingTurns | None = None
    """The number of last turns whose thinking stays; 1 where the field is left out."""


class ContextManagement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The edits of the conversation before the model reads it."""

    edits: Annotated[list[ContextEdit], Meta(max_length=4)] | None = None


System = str | Annotated[list[SystemBlock], Meta(max_length=MAX_BLOCKS)]
Messages = Annotated[list[MessageParam], Meta(min_length=1, max_length=MAX_MESSAGES)]


class PromptFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The part of a request that becomes its prompt."""

    model: Annotated[str, Meta(min_length=1, max_length=512)]
    messages: Messages
    system: System | None = None
    tools: Annotated[list[ToolParam], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    context_management: ContextManagement | None = None
    cache_control: CacheControl | None = None
    mcp_servers: list[Any] | None = None


class CreateMessage(PromptFields, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of POST /v1/messages. Fields of Anthropic that are not served are refused by name."""

    max_tokens: NumTokens
    """The most tokens to generate. If less room is left in the model's context, the room is the bound."""
    metadata: dict[Literal["user_id"], Annotated[str, Meta(max_length=512)] | None] | None = None
    stop_sequences: Annotated[list[StopString], Meta(max_length=16)] | None = None
    stream: bool | None = None
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    """Without effect: all messages are of the tier `standard`."""
    container: Any = None
    diagnostics: Any = None
    inference_geo: Any = None
    speed: Literal["standard"] | None = None


class CountTokens(PromptFields, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of POST /v1/messages/count_tokens."""


class InputTokenCount(msgspec.Struct, frozen=True):
    """The reply to a count of the tokens of a prompt."""

    input_tokens: int
    """The number of tokens that a message for this prompt is billed, tokens that are found in the cache included."""


COUNT_NO_EFFECT: dict[str, tuple[Any, ...]] = {"mcp_servers": ([],)}
NO_EFFECT: dict[str, tuple[Any, ...]] = COUNT_NO_EFFECT | {"container": (), "diagnostics": (), "inference_geo": ()}
"""The values of fields this API does not serve that change nothing; any other value is refused by name."""


class CacheCreation(msgspec.Struct, frozen=True):
    """The tokens that a client's cache marks wrote; always 0, since the engine caches every prompt by itself."""

    ephemeral_1h_input_tokens: int = 0
    ephemeral_5m_input_tokens: int = 0


class MessageUsage(msgspec.Struct, frozen=True):
    """The tokens of a message. All three kinds of input tokens together are what the prompt has."""

    input_tokens: int
    """The tokens of the prompt that were not found in the cache."""
    output_tokens: int
    cache_read_input_tokens: int = 0
    """The tokens of the prompt that were found in the cache."""
    cache_creation_input_tokens: int = 0
    """Zero: what is written to the cache is billed as any input."""
    cache_creation: CacheCreation = CacheCreation()
    service_tier: Literal["standard"] = "standard"
    inference_geo: None = None
    output_tokens_details: None = None
    server_tool_use: None = None


class MessageObject(msgspec.Struct, frozen=True, kw_only=True):
    """A message that the model wrote."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[OutputBlock]
    stop_reason: StopReason | None = None
    """The reason why the message ended; null while a stream is under way."""
    stop_sequence: str | None = None
    """The stop sequence that ended the message."""
    stop_details: None = None
    container: None = None
    usage: MessageUsage
