"""Token counts as OpenAI's replies show them, of whole replies and, as vLLM's do, of streams under way."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from engine.protocol import Usage
from gateway.backends.generation import Piece


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """The part of the prompt tokens that the engine found in its cache."""

    cached_tokens: int
    audio_tokens: int = 0


class CompletionTokensDetails(msgspec.Struct, frozen=True):
    """The parts of the completion tokens: predicted ones, and reasoning."""

    accepted_prediction_tokens: int
    """Tokens of the prediction that became part of the reply."""
    rejected_prediction_tokens: int
    """Tokens of the prediction that were tried and rejected. They are neither part of the reply nor billed."""
    reasoning_tokens: int = 0
    audio_tokens: int = 0


class UsageOut(msgspec.Struct, frozen=True):
    """The tokens of a request. The details are known once the reply has ended."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    """The sum of prompt_tokens and completion_tokens."""
    prompt_tokens_details: PromptTokensDetails | msgspec.UnsetType = msgspec.UNSET
    completion_tokens_details: CompletionTokensDetails | msgspec.UnsetType = msgspec.UNSET


class UsageSoFar:
    """The running count of the tokens of one streamed reply, over all its prompts and choices."""

    def __init__(self, prompt_tokens: Sequence[int]) -> None:
        """Start the count. prompt_tokens: the number of tokens of each prompt."""
        self._by_prompt = list(prompt_tokens)
        self._by_choice: dict[int, int] = {}

    def add(self, choice: int, piece: Piece, *, prompt: int = 0) -> UsageOut:
        """Count a piece of a choice, and return the usage so far. prompt: the number of the choice's prompt."""
        self._by_choice[choice] = piece.num_tokens
        if piece.prompt_tokens is not None:
            self._by_prompt[prompt] = piece.prompt_tokens
        return self.shown

    @property
    def shown(self) -> UsageOut:
        """The usage so far."""
        prompts, completion = sum(self._by_prompt), sum(self._by_choice.values())
        return UsageOut(prompts, completion, prompts + completion)


def usage_of_chunks(so_far: UsageSoFar | None, *, with_usage: bool) -> UsageOut | msgspec.UnsetType | None:
    """Return the usage that a stream's first chunk shows: null where only the last chunk is to bring one.

    so_far: counts the usage where every chunk shows it; None: only the last chunk does, or none. with_usage: True: the
    last chunk has the usage.
    """
    if so_far is not None:
        return so_far.shown
    return None if with_usage else msgspec.UNSET


def usage_out(usages: Sequence[Usage], *, is_predicted: bool = False, num_reasoning_tokens: int = 0) -> UsageOut:
    """Return the sum over the prompts of one reply.

    is_predicted: True if the drafts came from the client's prediction. num_reasoning_tokens: the tokens of reasoning.
    """
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
        CompletionTokensDetails(accepted, tried - accepted, min(num_reasoning_tokens, completion)),
    )
