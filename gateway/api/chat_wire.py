"""Chat completions as OpenAI's clients send and expect them: structs, bounds, and which fields have no effect here."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gateway.api.common_wire import CommonFields
from gateway.api.fields import NumTokens
from gateway.api.grammar import ResponseFormat
from gateway.api.logprobs import ChatLogprobs
from gateway.api.usage import UsageOut


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
    audio: Any = None
    tool_calls: list[Any] | None = None
    tool_call_id: str | None = None
    function_call: Any = None


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
    tools: list[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    functions: list[Any] | None = None
    function_call: Any = None
    modalities: list[str] | None = None
    audio: Any = None
    prediction: Any = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    web_search_options: Any = None
    moderation: Any = None


CHAT_NO_EFFECT: dict[str, tuple[Any, ...]] = {
    "prompt_cache_retention": ("in_memory",),
    "prompt_cache_options": (),
    "store": (False,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    "web_search_options": (),
    "moderation": (),
}
"""The values of fields this API does not serve yet that change nothing; any other value is refused by name."""


class AssistantMessage(msgspec.Struct, frozen=True):
    content: str
    role: Literal["assistant"] = "assistant"
    refusal: None = None


class ChatChoice(msgspec.Struct, frozen=True):
    index: int
    message: AssistantMessage
    finish_reason: str
    logprobs: ChatLogprobs | None = None


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageOut
    service_tier: ServedTier = "default"
    system_fingerprint: str | None = None


class ChatDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    role: Literal["assistant"] | None = None
    content: str | None = None


class ChatChunkChoice(msgspec.Struct, frozen=True):
    index: int
    delta: ChatDelta
    finish_reason: str | None = None
    logprobs: ChatLogprobs | None = None


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True):
    """usage is left out unless the client asked for it; then it is null in every chunk but the last."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: UsageOut | msgspec.UnsetType | None = msgspec.UNSET
    service_tier: ServedTier = "default"
    system_fingerprint: str | None = None
