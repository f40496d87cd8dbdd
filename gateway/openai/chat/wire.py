"""Chat completions as OpenAI's clients send and expect them: structs, bounds, and which fields have no effect here."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, UnsetType

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
    """One part of a message; only text can be served."""

    type: Literal["text", "refusal", "image_url", "input_audio", "file"]
    text: str | None = None
    refusal: str | None = None
    image_url: Any = None
    input_audio: Any = None
    file: Any = None
    prompt_cache_breakpoint: Any = None


class ChatMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    role: Literal["developer", "system", "user", "assistant", "tool", "function"]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None
    audio: Any = None
    tool_calls: Annotated[list[ToolCallParam], Meta(max_length=MAX_TOOLS)] | None = None
    tool_call_id: str | None = None
    function_call: FunctionCallParam | None = None


ServedTier = Literal["default", "flex", "priority"]


class ChatCompletionRequest(CommonFields, frozen=True, kw_only=True):
    """POST /v1/chat/completions. Every documented field is here, so that refusing one can name it."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=4096)]
    max_tokens: NumTokens | None = None
    max_completion_tokens: NumTokens | None = None
    safety_identifier: Annotated[str, Meta(max_length=64)] | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None
    prompt_cache_options: Any = None
    store: bool | None = None
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
    """content: null where there are calls and no text. tool_calls, function_call: where there are any; the latter for
    those who sent functions."""

    content: str | None
    role: Literal["assistant"] = "assistant"
    refusal: str | None = None
    annotations: list[dict[str, Any]] = []
    tool_calls: list[ToolCall] | UnsetType = msgspec.UNSET
    function_call: FunctionCall | UnsetType = msgspec.UNSET


class ChatChoice(msgspec.Struct, frozen=True):
    """token_ids, vLLM's: where they were asked for."""

    index: int
    message: AssistantMessage
    finish_reason: str
    logprobs: ChatLogprobs | None = None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """metadata: of what is stored. The last two, vLLM's: where they were asked for."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageOut
    service_tier: ServedTier = "default"
    system_fingerprint: str | None = None
    metadata: dict[str, str] | msgspec.UnsetType | None = msgspec.UNSET
    prompt_logprobs: PromptLogprobs | msgspec.UnsetType = msgspec.UNSET
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class ChatDelta(msgspec.Struct, frozen=True):
    """What is new of a message. refusal: null, once, with the role."""

    role: Literal["assistant"] | UnsetType = msgspec.UNSET
    content: str | UnsetType | None = msgspec.UNSET
    refusal: str | UnsetType | None = msgspec.UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = msgspec.UNSET
    function_call: FunctionCallDelta | UnsetType = msgspec.UNSET


class ChatChunkChoice(msgspec.Struct, frozen=True):
    index: int
    delta: ChatDelta
    finish_reason: str | None = None
    logprobs: ChatLogprobs | None = None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True):
    """usage is left out unless the client asked for it; then it is null in every chunk but the last. prompt_token_ids:
    in the first one, where token ids were asked for."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: UsageOut | msgspec.UnsetType | None = msgspec.UNSET
    service_tier: ServedTier = "default"
    system_fingerprint: str | None = None
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
