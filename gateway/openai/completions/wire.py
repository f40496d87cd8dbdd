"""Text completions as OpenAI's clients send and expect them: structs, bounds, and fields that have no effect here."""

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
    """The body of POST /v1/completions."""

    prompt: str | Annotated[list[str | int | list[int]], Meta(min_length=1)]
    """A text, a list of texts, token ids, or lists of token ids. Each prompt makes n choices."""
    max_tokens: MinTokens | None = None
    """The most tokens to generate; 0 is allowed only if `echo` is true."""
    best_of: Annotated[int, Meta(ge=0, le=20)] | None = None
    """The number of candidates for each prompt, of which the n likeliest are shown. 0 makes n candidates."""
    echo: bool | None = None
    suffix: str | None = None
    logprobs: Annotated[int, Meta(ge=0, le=5)] | None = None
    add_special_tokens: bool | None = None


COMPLETION_NO_EFFECT: dict[str, tuple[Any, ...]] = COMMON_NO_EFFECT | {"suffix": ("",)}
"""The values of fields this API does not serve yet that change nothing; any other value is refused by name."""


class CompletionChoice(msgspec.Struct, frozen=True):
    """A text for a prompt, of which `n` are generated."""

    index: int
    text: str
    finish_reason: str | None = None
    logprobs: TextLogprobs | None = None
    prompt_logprobs: PromptLogprobs | msgspec.UnsetType = msgspec.UNSET
    """The log-probabilities of the prompt, where they were asked for (vLLM's); in a stream, in the first chunk of
    each choice."""
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    """The token ids of the prompt, with `return_token_ids` (vLLM's); in a stream, in the first chunk of each choice."""
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    """The generated token ids, with `return_token_ids` (vLLM's)."""


class TextCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """A whole reply, or one event of a streamed reply."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageOut | msgspec.UnsetType | None = msgspec.UNSET
    """The tokens of the request, left out of the chunks of a stream unless the client asked for usage."""
    system_fingerprint: str | None = None
