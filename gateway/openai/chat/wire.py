"""Chat completions as OpenAI's clients send and expect them: structs, bounds, and fields that have no effect here."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, UnsetType

from gateway.domain.tenancy.principal import ServiceTier
from gateway.http.fields import NumTokens
from gateway.openai.chat.prediction import Prediction
from gateway.openai.chat.rendering import ReasoningEffort, TemplateArguments, Verbosity
from gateway.openai.chat.tools_wire import (
    MAX_TOOLS,
    FunctionCall,
    FunctionCallDelta,
    FunctionCallParam,
    FunctionChoice,
    Functions,
    ToolCall,
    ToolCallDelta,
    ToolCallParam,
    ToolChoice,
    Tools,
)
from gateway.openai.shared.common_wire import COMMON_NO_EFFECT, CommonFields
from gateway.openai.shared.grammar import ResponseFormat
from gateway.openai.shared.logprobs import ChatLogprobs, PromptLogprobs
from gateway.openai.shared.usage import UsageOut


class ContentPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a message. Only text is served."""

    type: Literal["text", "refusal", "image_url", "input_audio", "file"]
    text: str | None = None
    refusal: str | None = None
    image_url: Any = None
    input_audio: Any = None
    file: Any = None
    prompt_cache_breakpoint: Any = None


class ChatMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message of the conversation, as the client sends it."""

    role: Literal["developer", "system", "user", "assistant", "tool", "function"]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None
    audio: Any = None
    tool_calls: Annotated[list[ToolCallParam], Meta(max_length=MAX_TOOLS)] | None = None
    tool_call_id: str | None = None
    function_call: FunctionCallParam | None = None
    reasoning_content: str | None = None
    """The reasoning of an earlier answer, which the chat template may show to the model again (vLLM's)."""


class ChatCompletionRequest(CommonFields, frozen=True, kw_only=True):
    """The body of POST /v1/chat/completions. Fields of OpenAI that are not served are refused by name."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=4096)]
    max_tokens: NumTokens | None = None
    max_completion_tokens: NumTokens | None = None
    """The most tokens to generate. A request may have this field or `max_tokens`, its older name, but not both."""
    safety_identifier: Annotated[str, Meta(max_length=64)] | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None
    prompt_cache_options: Any = None
    store: bool | None = None
    """True if the completion is stored, where the project allows it."""
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast"] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    response_format: ResponseFormat | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: Functions | None = None
    function_call: FunctionChoice | None = None
    modalities: list[str] | None = None
    audio: Any = None
    prediction: Prediction | None = None
    reasoning_effort: ReasoningEffort | None = None
    verbosity: Verbosity | None = None
    web_search_options: Any = None
    moderation: Any = None
    # Beyond OpenAI, with vLLM's names.
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    chat_template_kwargs: TemplateArguments | None = None


CHAT_NO_EFFECT: dict[str, tuple[Any, ...]] = COMMON_NO_EFFECT | {
    "prompt_cache_retention": ("in_memory",),
    "prompt_cache_options": (),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
    "moderation": (),
}
"""The values of fields this API does not serve yet that change nothing; any other value is refused by name."""


class AssistantMessage(msgspec.Struct, frozen=True):
    """The message that the model wrote."""

    content: str | None
    """The text; null where the model made calls and wrote no text."""
    role: Literal["assistant"] = "assistant"
    refusal: str | None = None
    annotations: list[dict[str, Any]] = []
    tool_calls: list[ToolCall] | UnsetType = msgspec.UNSET
    """The tool calls, where there are any."""
    function_call: FunctionCall | UnsetType = msgspec.UNSET
    """The call, if there is one and the request had `functions`."""
    reasoning_content: str | UnsetType = msgspec.UNSET
    """The reasoning before the answer, of a model that thinks (vLLM's)."""


class ChatChoice(msgspec.Struct, frozen=True):
    """A reply to the request, of which `n` are generated."""

    index: int
    message: AssistantMessage
    finish_reason: str
    logprobs: ChatLogprobs | None = None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    """The generated token ids, with `return_token_ids` (vLLM's)."""


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """A whole reply."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageOut
    service_tier: ServiceTier = "default"
    system_fingerprint: str | None = None
    metadata: dict[str, str] | msgspec.UnsetType | None = msgspec.UNSET
    """The metadata of a stored completion."""
    prompt_logprobs: PromptLogprobs | msgspec.UnsetType = msgspec.UNSET
    """The log-probabilities of the prompt, where they were asked for (vLLM's)."""
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    """The token ids of the prompt, with `return_token_ids` (vLLM's)."""


class ChatDelta(msgspec.Struct, frozen=True):
    """The next part of a message."""

    role: Literal["assistant"] | UnsetType = msgspec.UNSET
    content: str | UnsetType | None = msgspec.UNSET
    refusal: str | UnsetType | None = msgspec.UNSET
    """Always null, sent once together with the role."""
    tool_calls: list[ToolCallDelta] | UnsetType = msgspec.UNSET
    function_call: FunctionCallDelta | UnsetType = msgspec.UNSET
    reasoning_content: str | UnsetType = msgspec.UNSET
    """The next part of the reasoning, which comes before the content (vLLM's)."""


class ChatChunkChoice(msgspec.Struct, frozen=True):
    """The next part of one choice."""

    index: int
    delta: ChatDelta
    finish_reason: str | None = None
    logprobs: ChatLogprobs | None = None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a streamed reply."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: UsageOut | msgspec.UnsetType | None = msgspec.UNSET
    """The tokens of the request, left out unless the client asked for usage; then null in every chunk but the last."""
    service_tier: ServiceTier = "default"
    system_fingerprint: str | None = None
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    """The token ids of the prompt, in the first chunk, with `return_token_ids` (vLLM's)."""
