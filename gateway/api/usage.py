"""Token counts as OpenAI's replies show them."""

from __future__ import annotations

import msgspec

from engine.protocol import Usage


class PromptTokensDetails(msgspec.Struct, frozen=True):
    cached_tokens: int


class UsageOut(msgspec.Struct, frozen=True):
    """total_tokens = prompt_tokens + completion_tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


def usage_out(usages: list[Usage]) -> UsageOut:
    """The sum over the choices of one reply."""
    prompt = sum(usage.prompt_tokens for usage in usages)
    completion = sum(usage.completion_tokens for usage in usages)
    cached = sum(usage.cached_tokens for usage in usages)
    return UsageOut(prompt, completion, prompt + completion, PromptTokensDetails(cached))
