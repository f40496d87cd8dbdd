"""Token counts as OpenAI's replies show them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from engine.protocol import Usage


class PromptTokensDetails(msgspec.Struct, frozen=True):
    cached_tokens: int
    audio_tokens: int = 0


class CompletionTokensDetails(msgspec.Struct, frozen=True):
    """Of a prediction's tokens, those that were tried: the rejected ones are neither part of the answer nor billed."""

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int
    reasoning_tokens: int = 0
    audio_tokens: int = 0


class UsageOut(msgspec.Struct, frozen=True):
    """total_tokens = prompt_tokens + completion_tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


def usage_out(usages: Sequence[Usage], *, is_predicted: bool = False) -> UsageOut:
    """The sum over the prompts of one reply. is_predicted: its drafts came from the client's prediction."""
    prompt = sum(usage.prompt_tokens for usage in usages)
    completion = sum(usage.completion_tokens for usage in usages)
    cached = sum(usage.cached_tokens for usage in usages)
    accepted = sum(usage.accepted_draft_tokens for usage in usages) if is_predicted else 0
    tried = sum(usage.draft_tokens for usage in usages) if is_predicted else 0
    return UsageOut(
        prompt,
        completion,
        prompt + completion,
        PromptTokensDetails(cached),
        CompletionTokensDetails(accepted, tried - accepted),
    )
