"""The fields that several requests have in common, as OpenAI and, beyond it, vLLM name them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from gateway.http.fields import (
    AllowedTokenIds,
    LogitBias,
    Metadata,
    MinP,
    MinTokens,
    NumChoices,
    NumLogprobs,
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
    TruncationSide,
)
from gateway.openai.shared.grammar import StructuredOutputs


class SamplingFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The fields of sampling and of a completion's end, in every API that generates.

    A field that is null or left out has its default.
    """

    model: Annotated[str, Meta(min_length=1, max_length=512)]
    temperature: Temperature | None = None
    top_p: TopP | None = None
    stop: Stop | None = None
    seed: Seed | None = None
    stream: bool | None = None
    user: str | None = None
    metadata: Metadata | None = None
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
    allowed_token_ids: AllowedTokenIds | None = None


class CommonFields(SamplingFields, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The fields that chat and text completions have in common."""

    n: NumChoices | None = None
    stream_options: StreamOptions | None = None
    # Beyond OpenAI, with vLLM's names.
    structured_outputs: StructuredOutputs | None = None
    prompt_logprobs: NumLogprobs | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    truncate_prompt_tokens: NumTokens | None = None
    truncation_side: TruncationSide | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    priority: int | None = None
    bad_words: list[str] | None = None
    logits_processors: list[Any] | None = None


COMMON_NO_EFFECT: dict[str, tuple[Any, ...]] = {
    "spaces_between_special_tokens": (True,),
    "priority": (0,),
    "bad_words": ([],),
    "logits_processors": ([],),
}
"""The values that change nothing, for fields of vLLM that are not served."""
