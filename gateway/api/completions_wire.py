"""Text completions as OpenAI's clients send and expect them: structs, bounds, and which fields have no effect here."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gateway.api.fields import (
    LogitBias,
    Metadata,
    MinP,
    MinTokens,
    NumChoices,
    NumTokens,
    Penalty,
    RepetitionPenalty,
    Seed,
    Stop,
    StopTokenIds,
    StreamOptions,
    Temperature,
    TopK,
    TopP,
)
from gateway.api.usage import UsageOut

MAX_PROMPTS = 64
DEFAULT_MAX_TOKENS = 16


class CompletionRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """POST /v1/completions. prompt: a text, texts, token ids, or lists of token ids; several make several choices."""

    model: Annotated[str, Meta(min_length=1, max_length=512)]
    prompt: str | Annotated[list[str | int | list[int]], Meta(min_length=1)]
    max_tokens: NumTokens | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    stop: Stop | None = None
    seed: Seed | None = None
    n: NumChoices | None = None
    best_of: Annotated[int, Meta(ge=0, le=20)] | None = None
    echo: bool | None = None
    suffix: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    metadata: Metadata | None = None
    logprobs: Annotated[int, Meta(ge=0, le=5)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: LogitBias | None = None
    # Beyond OpenAI, with vLLM's names.
    top_k: TopK | None = None
    min_p: MinP | None = None
    repetition_penalty: RepetitionPenalty | None = None
    min_tokens: MinTokens | None = None
    ignore_eos: bool | None = None
    stop_token_ids: StopTokenIds | None = None


COMPLETION_NO_EFFECT: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": (),
    "logprobs": (),
    "presence_penalty": (0.0,),
    "frequency_penalty": (0.0,),
    "logit_bias": ({},),
    "min_p": (0.0,),
    "repetition_penalty": (1.0,),
}
"""The values of fields this API does not serve yet that change nothing; any other value is refused by name."""


class CompletionChoice(msgspec.Struct, frozen=True):
    index: int
    text: str
    finish_reason: str | None = None
    logprobs: None = None


class TextCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """A whole reply, or one chunk of a stream. usage is left out of the chunks of clients that did not ask for it."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageOut | msgspec.UnsetType | None = msgspec.UNSET
    system_fingerprint: str | None = None
