"""Responses as OpenAI's clients send and expect them: structs, bounds, and the fields that have no effect here."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gateway.http.fields import Name, NumTokens
from gateway.openai.chat.rendering import ReasoningEffort, TemplateArguments, Verbosity
from gateway.openai.responses.items import MAX_ITEMS, CompactionItem, InputItem, Item, MessageItem, OutputItem
from gateway.openai.responses.tools_wire import (
    MAX_TOOLS,
    ResponseTool,
    ResponseToolChoice,
    ToolChoiceShown,
    ToolShown,
)
from gateway.openai.shared.common_wire import SamplingFields

MAX_INSTRUCTIONS = 4 << 20

Summary = Literal["auto", "concise", "detailed"]
Include = Literal[
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
    "reasoning.encrypted_content",
    "message.output_text.logprobs",
]
"""The parts that a client may include in a reply; only `message.output_text.logprobs` exists here."""


class TextFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The form that the text of the response must have."""

    type: Literal["text", "json_object", "json_schema"]
    name: Name | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None
    """Without effect: the schema is always enforced."""


class TextOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The form and the length of the answer that the client asks for."""

    format: TextFormat | None = None
    verbosity: Verbosity | None = None


class ReasoningOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The thinking that the client asks for."""

    effort: ReasoningEffort | None = None
    """The effort that the chat template is told, where it reads one."""
    summary: Summary | None = None
    """The kind of summary that the client wants of the thinking. It has no effect: this server makes no summaries."""
    generate_summary: Summary | None = None
    """The older name of `summary`."""
    context: Literal["auto", "current_turn", "all_turns"] | None = None
    mode: str | None = None


class ConversationRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The conversation that a response continues."""

    id: Annotated[str, Meta(min_length=1, max_length=256)]


ConversationParam = Annotated[str, Meta(min_length=1, max_length=256)] | ConversationRef


class ResponseStreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The options of a stream."""

    include_obfuscation: bool | None = None
    """True to pad the events of text, so that their sizes do not tell how long each token is."""


class CreateResponse(SamplingFields, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of POST /v1/responses. Fields of OpenAI that are not served are refused by name."""

    input: str | Annotated[list[InputItem], Meta(min_length=1, max_length=MAX_ITEMS)]
    """A text of the user's, or items."""
    instructions: Annotated[str, Meta(max_length=MAX_INSTRUCTIONS)] | None = None
    """A system message before the input. It is not carried over to a response that follows this one."""
    stream_options: ResponseStreamOptions | None = None
    store: bool | None = None
    """True if the response is stored, where the project allows it; left out, the project's setting decides."""
    previous_response_id: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    max_output_tokens: NumTokens | None = None
    """The most tokens to generate."""
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    include: Annotated[list[Include], Meta(max_length=64)] | None = None
    text: TextOptions | None = None
    tools: Annotated[list[ResponseTool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ResponseToolChoice | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    """A bound on calls of tools that the server runs. It has no effect, since this server runs none."""
    reasoning: ReasoningOptions | None = None
    truncation: Literal["auto", "disabled"] | None = None
    """`auto` to leave out the oldest turns where the conversation does not fit the model's context."""
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast"] | None = None
    safety_identifier: Annotated[str, Meta(max_length=64)] | None = None
    prompt_cache_key: Annotated[str, Meta(max_length=512)] | None = None
    """Without effect: prompts are found in the cache by their tokens."""
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None
    client_metadata: Annotated[dict[str, str], Meta(max_length=64)] | None = None
    """Metadata that Codex sends, without effect here."""
    background: bool | None = None
    """True to get a reply at once, while the response is made in the background and stored."""
    conversation: ConversationParam | None = None
    """The conversation that the response continues, and to which its input and output are added."""
    context_management: Any = None
    prompt: Any = None
    prompt_cache_options: Any = None
    moderation: Any = None
    # Beyond OpenAI, with vLLM's names.
    chat_template_kwargs: TemplateArguments | None = None


class CompactResponse(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of POST /v1/responses/compact."""

    model: Annotated[str, Meta(min_length=1, max_length=512)]
    input: str | Annotated[list[InputItem], Meta(min_length=1, max_length=MAX_ITEMS)] | None = None
    """The conversation: a text of the user's, or items."""
    instructions: Annotated[str, Meta(max_length=MAX_INSTRUCTIONS)] | None = None
    """A system message before the conversation."""
    previous_response_id: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    """The stored response that the conversation goes on from."""
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast"] | None = None
    prompt_cache_key: Annotated[str, Meta(max_length=512)] | None = None
    """Without effect: prompts are found in the cache by their tokens."""


class CountInputTokens(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of POST /v1/responses/input_tokens: the part of a request that becomes its prompt."""

    model: Annotated[str, Meta(min_length=1, max_length=512)]
    input: str | Annotated[list[InputItem], Meta(min_length=1, max_length=MAX_ITEMS)]
    instructions: Annotated[str, Meta(max_length=MAX_INSTRUCTIONS)] | None = None
    previous_response_id: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    tools: Annotated[list[ResponseTool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ResponseToolChoice | None = None
    parallel_tool_calls: bool | None = None
    """Without effect on the prompt."""
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    truncation: Literal["auto", "disabled"] | None = None
    """Without effect: all of the input is counted."""
    conversation: ConversationParam | None = None
    chat_template_kwargs: TemplateArguments | None = None


class InputTokens(msgspec.Struct, frozen=True):
    """The reply to a count of the tokens of an input."""

    input_tokens: int
    """The number of tokens that a response to this input would be billed for the input."""
    object: Literal["response.input_tokens"] = "response.input_tokens"


RESPONSES_NO_EFFECT: dict[str, tuple[Any, ...]] = {
    "prompt_cache_retention": ("in_memory",),
    "context_management": ([],),
    "prompt": (),
    "prompt_cache_options": (),
    "moderation": (),
}
"""The values of fields this API does not serve yet that change nothing; any other value is refused by name."""


class ReplyError(msgspec.Struct, frozen=True):
    """The reason why a response failed."""

    code: Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]
    message: str


class IncompleteDetails(msgspec.Struct, frozen=True):
    """The reason why a response ended early."""

    reason: Literal["max_output_tokens"]


class InputTokensDetails(msgspec.Struct, frozen=True):
    """The part of the input tokens that the engine found in its cache."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(msgspec.Struct, frozen=True):
    """The part of the output tokens that were thinking."""

    reasoning_tokens: int = 0


class ResponseUsage(msgspec.Struct, frozen=True):
    """The tokens of a response."""

    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens_details: OutputTokensDetails = OutputTokensDetails()


class TextShown(msgspec.Struct, frozen=True):
    """The form of the answer, as a reply shows it."""

    format: dict[str, Any]
    verbosity: Verbosity


class ConversationShown(msgspec.Struct, frozen=True):
    """The conversation of a response, as a reply shows it."""

    id: str


class ReasoningShown(msgspec.Struct, frozen=True):
    """The thinking that was asked for, as a reply shows it."""

    effort: ReasoningEffort | None
    summary: Summary | None


ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


class ResponseObject(msgspec.Struct, frozen=True, kw_only=True):
    """A response, with the values that its request left to the server."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: ResponseStatus
    error: ReplyError | None = None
    incomplete_details: IncompleteDetails | None = None
    model: str
    output: list[OutputItem]
    usage: ResponseUsage | None = None
    instructions: str | None
    previous_response_id: str | None
    conversation: ConversationShown | None
    """The conversation that the input and the output were added to; null where they were not."""
    tools: list[ToolShown]
    tool_choice: ToolChoiceShown
    parallel_tool_calls: bool
    max_tool_calls: int | None
    text: TextShown
    reasoning: ReasoningShown
    temperature: float
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    top_logprobs: int
    max_output_tokens: int | None
    truncation: Literal["auto", "disabled"] = "disabled"
    store: bool
    """True if the response is stored. In a stream, only the last event says so for certain."""
    background: bool = False
    service_tier: str
    metadata: dict[str, str]
    safety_identifier: str | None
    prompt_cache_key: str | None
    user: str | UnsetType = UNSET


class CompactedResponse(msgspec.Struct, frozen=True):
    """A shorter form of a conversation."""

    id: str
    created_at: int
    output: list[MessageItem | CompactionItem]
    """The user's messages, and the summary of the conversation."""
    usage: ResponseUsage
    object: Literal["response.compaction"] = "response.compaction"
    incomplete_details: IncompleteDetails | UnsetType = UNSET
    """The reason for which the summary lacks its end; left out where it is whole."""


class ItemList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of items."""

    object: Literal["list"] = "list"
    data: list[Item]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ResponseDeleted(msgspec.Struct, frozen=True):
    """The reply to a deletion of a response."""

    id: str
    deleted: bool = True
    object: Literal["response"] = "response"
