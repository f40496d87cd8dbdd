"""Text completions as OpenAI's clients send and expect them: structs, bounds, and which fields have no effect here."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gateway.http.fields import MinTokens
from gateway.openai.shared.common_wire import COMMON_NO_EFFECT, CommonFields
from gateway.openai.shared.logprobs import PromptLogprobs, TextLogprobs
from gateway.openai.shared.usage import UsageOut

MAX_PROMPTS = 64
DEFAULT_MAX_TOKENS = 16


class CompletionRequest(CommonFields, frozen=True, kw_only=True):
    """POST /v1/completions. prompt: a text, texts, token ids, or lists of token ids; each makes n choices.

    max_tokens 0 goes with echo alone. best_of candidates are made for each prompt, of which the n likeliest are shown;
    0 are as many as n.
    """

    prompt: str | Annotated[list[str | int | list[int]], Meta(min_length=1)]
    max_tokens: MinTokens | None = None
    best_of: Annotated[int, Meta(ge=0, le=20)] | None = None
    echo: bool | None = None
    suffix: str | None = None
    logprobs: Annotated[int, Meta(ge=0, le=5)] | None = None
    add_special_tokens: bool | None = None


COMPLETION_NO_EFFECT: dict[str, tuple[Any, ...]] = COMMON_NO_EFFECT | {"suffix": ("",)}
"""The values of fields this API does not serve yet that change nothing; any other value is refused by name."""


class CompletionChoice(msgspec.Struct, frozen=True):
    """The last three, vLLM's: where they were asked for; of a stream the prompt's are in each choice's first chunk."""

    index: int
    text: str
    finish_reason: str | None = None
    logprobs: TextLogprobs | None = None
    prompt_logprobs: PromptLogprobs | msgspec.UnsetType = msgspec.UNSET
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class TextCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """A whole reply, or one chunk of a stream. usage is left out of the chunks of clients that did not ask for it."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageOut | msgspec.UnsetType | None = msgspec.UNSET
    system_fingerprint: str | None = None
