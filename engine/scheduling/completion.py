"""The effect of a step on one sequence: its progress at the launch, its new tokens by the result, and its end.

Knows neither blocks nor queues nor other sequences.
"""

from __future__ import annotations

from collections.abc import Sequence as Many

import msgspec

from engine.protocol import Delta, EngineError, FinishReason
from engine.sequence import Chunk, ChunkResult, MatcherError, SampledToken, Sequence

NOT_A_NUMBER = "the model's output is not a number: the adapter or the weights overflow"


class Progress(msgspec.Struct):
    """The progress of a sequence by one chunk."""

    num_computed: int
    """The number of the sequence's tokens up to the chunk's end, as far as drafts were right."""
    num_new: int = 0
    """New completion tokens, the stopping one included."""
    delta: Delta | None = None
    """The new tokens to send; None where there are none."""
    finish_reason: FinishReason | None = None
    """The reason of the sequence's end; None where it goes on."""
    error: EngineError | None = None


def take_launch(chunk: Chunk) -> None:
    """Record that the chunk's step was launched: the sequence's computed tokens, and its pending token, if any."""
    sequence = chunk.sequence
    sequence.num_computed = chunk.first + chunk.num_tokens - len(chunk.drafts)
    if _chooses(chunk):
        sequence.num_pending += 1


def take_result(chunk: Chunk, result: ChunkResult, eos_token_ids: frozenset[int]) -> Progress:
    """Record the chunk's result after `take_launch`, and return the sequence's progress.

    This updates token_ids, the matcher, the count of drafts that were right, and what the sequence gathers of its
    prompt.
    """
    sequence = chunk.sequence
    progress = Progress(chunk.first + chunk.num_tokens - len(chunk.drafts))
    _gather_prompt(sequence, result)
    if _chooses(chunk):
        sequence.num_pending -= 1
        _take_tokens(chunk, result.sampled, eos_token_ids, progress)
    elif chunk.samples:
        _end_prompt(sequence, progress)
    return progress


def _chooses(chunk: Chunk) -> bool:
    return chunk.samples and chunk.sequence.request.sampling.max_tokens > 0


def _gather_prompt(sequence: Sequence, result: ChunkResult) -> None:
    sequence.prompt_logprobs += result.prompt_logprobs
    if result.pooled is not None:
        sequence.pooled = result.pooled if sequence.pooled is None else sequence.pooled + result.pooled


def _end_prompt(sequence: Sequence, progress: Progress) -> None:
    """Set the finish reason of a request that wants nothing but its prompt computed."""
    progress.finish_reason = "stop" if sequence.request.pooling is not None else "length"
    if sequence.request.pooling is None:
        progress.delta = _delta(sequence, 0, [], "length")


def _take_tokens(chunk: Chunk, sampled: Many[SampledToken], eos_token_ids: frozenset[int], progress: Progress) -> None:
    """Record the first token, and the one after each draft for as long as the drafts are what was sampled.

    Every token is drawn from its own conditional distribution with its own position's random number, and a draft only
    decides whether that draw could be made in this step: the text is the one that comes without drafts (greedy: the
    same; sampling: the same for the same seed), which is speculative sampling (Leviathan et al., 2023) with a point
    mass as draft distribution.
    """
    sequence = chunk.sequence
    sequence.num_draft_tokens += len(chunk.drafts)
    shown: list[SampledToken] = []
    stop_token_id: int | None = None
    for position, token in enumerate(sampled):
        if position and sampled[position - 1].token_id != chunk.drafts[position - 1]:
            break
        if not token.finite:
            progress.error = EngineError("internal", NOT_A_NUMBER)
            return
        sequence.token_ids.append(token.token_id)
        progress.num_new += 1
        if _stops(sequence, token.token_id, eos_token_ids):
            progress.finish_reason = "stop"
            stop_token_id = token.token_id
            break
        shown.append(token)
        try:
            progress.finish_reason = _reason_to_end(sequence, token.token_id)
        except MatcherError as error:
            progress.error = EngineError("invalid_request", f"grammar: {error}")
            return
        if progress.finish_reason is not None:
            break
    num_accepted = progress.num_new - 1
    sequence.num_accepted_drafts += num_accepted
    sequence.num_computed += num_accepted
    progress.num_computed += num_accepted
    progress.delta = _delta(sequence, progress.num_new, shown, progress.finish_reason, stop_token_id)


def _stops(sequence: Sequence, token_id: int, eos_token_ids: frozenset[int]) -> bool:
    """Tell whether this token ends the sequence without being part of it.

    A grammar lets the end of the sequence come only where it may, so there neither min_tokens nor ignore_eos has a say.
    """
    sampling = sequence.request.sampling
    is_early = sequence.num_completion_tokens <= sampling.min_tokens
    if token_id in eos_token_ids and (sequence.matcher is not None or not (is_early or sampling.ignore_eos)):
        return True
    return not is_early and token_id in sampling.stop_token_ids


def _reason_to_end(sequence: Sequence, token_id: int) -> FinishReason | None:
    """Return why the sequence ends after a token that is part of the completion; None if it goes on.

    Raises MatcherError: when the sequence's matcher does not accept the token.
    """
    if sequence.matcher is not None:
        sequence.matcher.accept(token_id)
        if sequence.matcher.is_complete:
            return "stop"
    return "length" if sequence.num_completion_tokens == sequence.request.sampling.max_tokens else None


def _delta(
    sequence: Sequence,
    num_new: int,
    shown: Many[SampledToken],
    finish_reason: FinishReason | None,
    stop_token_id: int | None = None,
) -> Delta:
    sampling = sequence.request.sampling
    logprobs = None
    if sampling.num_logprobs is not None:
        logprobs = [token.logprobs for token in shown if token.logprobs is not None]
    prompt_logprobs = None
    is_first = sequence.num_completion_tokens == num_new
    if sampling.num_prompt_logprobs is not None and is_first and not sequence.index:
        prompt_logprobs = [None, *sequence.prompt_logprobs]
        sequence.prompt_logprobs = []
    return Delta(
        sequence.request_id,
        [token.token_id for token in shown],
        sequence.num_completion_tokens,
        sequence.index,
        logprobs,
        finish_reason,
        prompt_logprobs,
        stop_token_id,
    )
