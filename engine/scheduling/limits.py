"""The bounds of an engine's work, and refusals on arrival, with the name of the field that is wrong.

Gateways hold clients to most of these bounds already; here they keep one bad request from failing a step for everyone.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from engine.protocol import MAX_LOGPROBS, EngineError, GenerateRequest, SamplingParams

MIN_WEIGHT, MAX_WEIGHT = 1e-3, 1e3
BATCH_ROUNDS = 7
"""The number of full batches that may wait in the batch band: more than an engine ends between two heartbeats."""

# The least and the largest value of each field of `SamplingParams`.
SAMPLING_BOUNDS: dict[str, tuple[float, float]] = {
    "temperature": (0, math.inf),
    "top_p": (0, 1),
    "top_k": (-1, 2**31 - 1),
    "min_p": (0, 1),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "repetition_penalty": (1e-3, 1e3),  # smaller ones overflow
    "min_tokens": (0, math.inf),
    "num_logprobs": (0, MAX_LOGPROBS),
    "num_prompt_logprobs": (0, MAX_LOGPROBS),
}
MAX_LOGIT_BIAS = 100


class BatchLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The largest part of an engine that the batch band may take, and the least that it gets."""

    lengthening: float = 0.15
    """The factor, less 1, by which batch work may lengthen a step in which interactive requests are computed."""
    step_s: float = 0.030
    """The longest predicted time, in seconds, of a step of batch work alone."""
    efficiency: float = 0.0
    """A step of batch work alone may be longer than step_s, if that is needed to reach this part of the efficiency of
    steps with all sequences."""
    num_one_row_steps: float = 0.0
    """The longest step of batch work alone by `efficiency`, as a multiple of a step of one sequence."""
    share: float = 0.02
    """The part of all service that the band gets while it has work, however many interactive requests there are."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of one engine."""

    max_num_seqs: int
    """The most choices that run at once."""
    max_batched_tokens: int
    """The most tokens of one step."""
    max_waiting: int
    """The most choices that may wait, beyond the max_num_seqs that run."""
    max_model_len: int
    """The most prompt and completion tokens of one sequence."""
    vocab_size: int
    eos_token_ids: frozenset[int]
    """The tokens by which the model ends a sequence."""
    token_bytes: int
    """Bytes of one token's keys and values, the unit in which adapter loads are charged."""
    task: Literal["text", "embed", "rerank"] = "text"
    """The model's task (`engine.config.model.Task`): only text is generated and scored, only `rerank` ranks."""
    caches_prefixes: bool = True
    """False for a model whose tokens see those after them: no part of a text is computed without the rest."""
    length_switch: int = 0
    """The length beyond which a sequence's positions are all rotated by other angles (LongRoPE); 0: none."""
    num_draft_tokens: int = 0
    """The most guesses in a step of one sequence; 0: no speculation."""
    batch: BatchLimits = BatchLimits()

    @property
    def max_batch_waiting(self) -> int:
        """The number of choices of the batch band that may be held beyond max_num_seqs."""
        return BATCH_ROUNDS * self.max_num_seqs


def check_request(request: GenerateRequest, limits: Limits) -> EngineError | None:
    """Return why this engine can't take the request, or None."""
    problem = (
        _wrong_task(request, limits)
        or _wrong_length(request, limits.max_model_len)
        or _wrong_choices(request, limits.max_num_seqs)
        or _wrong_token_ids(request, limits.vocab_size)
        or _wrong_weight(request)
        or _wrong_slack(request)
        or _wrong_sampling(request.sampling)
    )
    return None if problem is None else EngineError("invalid_request", problem)


def _wrong_task(request: GenerateRequest, limits: Limits) -> str | None:
    if limits.task != "text" and request.pooling is None:
        return f"pooling is missing: this model makes no text, it is for {limits.task}"
    if (request.pooling == "score") != (limits.task == "rerank"):
        return f"pooling is {request.pooling}; this model is for {limits.task}"
    if request.pooling == "cls" and limits.caches_prefixes:
        return "pooling is cls; this model's first token sees no other"
    if not 0 <= request.num_first_tokens <= len(request.prompt_token_ids):
        return f"num_first_tokens is {request.num_first_tokens}"
    return None


def _wrong_length(request: GenerateRequest, max_model_len: int) -> str | None:
    sampling = request.sampling
    total = len(request.prompt_token_ids) + sampling.max_tokens
    if not request.prompt_token_ids:
        return "prompt_token_ids is empty"
    if total > max_model_len:
        return f"prompt_token_ids and max_tokens make {total} tokens of at most {max_model_len}"
    if len(request.predicted_token_ids) > max_model_len:
        return f"predicted_token_ids: {len(request.predicted_token_ids)} tokens of at most {max_model_len}"
    wants_prompt_only = request.pooling is not None or sampling.num_prompt_logprobs is not None
    if sampling.max_tokens < (0 if wants_prompt_only else 1):
        return f"max_tokens is {sampling.max_tokens}"
    if request.pooling is not None and sampling.max_tokens:
        return f"max_tokens is {sampling.max_tokens}; with pooling it must be 0"
    return None


def _wrong_choices(request: GenerateRequest, max_num_seqs: int) -> str | None:
    if not 1 <= request.n <= max_num_seqs:
        return f"n is {request.n}; this engine takes 1 to {max_num_seqs}"
    if request.n > 1 and request.predicted_token_ids:
        return f"n is {request.n}; with predicted_token_ids it must be 1"
    if request.n > 1 and not request.sampling.max_tokens:
        return f"n is {request.n}; with max_tokens 0 it must be 1"
    return None


def _wrong_token_ids(request: GenerateRequest, vocab_size: int) -> str | None:
    named = {
        "prompt_token_ids": request.prompt_token_ids,
        "stop_token_ids": request.sampling.stop_token_ids,
        "allowed_token_ids": request.sampling.allowed_token_ids,
        "predicted_token_ids": request.predicted_token_ids,
        "logit_bias": request.sampling.logit_bias,
    }
    for field, token_ids in named.items():
        if token_ids and not 0 <= min(token_ids) <= max(token_ids) < vocab_size:
            return f"{field}: token ids must be in 0..{vocab_size - 1}"
    return None


def _wrong_weight(request: GenerateRequest) -> str | None:
    if not MIN_WEIGHT <= request.weight <= MAX_WEIGHT:
        return f"weight is {request.weight}; it must be in {MIN_WEIGHT:g}..{MAX_WEIGHT:g}"
    return None


def _wrong_slack(request: GenerateRequest) -> str | None:
    slack_s = None if request.batch is None else request.batch.slack_s
    if slack_s is not None and not math.isfinite(slack_s):
        return f"batch.slack_s is {slack_s}; it must be a number of seconds"
    return None


def _wrong_sampling(sampling: SamplingParams) -> str | None:
    for field, (least, most) in SAMPLING_BOUNDS.items():
        value = getattr(sampling, field)
        if value is not None and not least <= value <= most:  # NaN is in no range
            return f"{field} is {value}; it must be in {least:g}..{most:g}"
    if sampling.min_tokens > sampling.max_tokens:
        return f"min_tokens is {sampling.min_tokens}; max_tokens is {sampling.max_tokens}"
    if sampling.allowed_token_ids and sampling.grammar is not None:
        return "allowed_token_ids: not beside a grammar"
    if not all(-MAX_LOGIT_BIAS <= bias <= MAX_LOGIT_BIAS for bias in sampling.logit_bias.values()):
        return f"logit_bias: biases must be in {-MAX_LOGIT_BIAS}..{MAX_LOGIT_BIAS}"
    return None
