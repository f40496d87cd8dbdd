"""Counters of the scheduler since its start, which the engine's statistics report."""

from __future__ import annotations

import msgspec


class Totals(msgspec.Struct):
    """Counters since the start.

    prefix_*: prompt tokens looked up in the cache and found there, each request counted once.
    batch_*: those of the batch band alone; its prompt and generated tokens are part of the others, its preemptions are
    not.
    """

    preemptions: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0
    draft_tokens: int = 0
    accepted_draft_tokens: int = 0
    batch_prompt_tokens: int = 0
    batch_generated_tokens: int = 0
    batch_preemptions: int = 0
    batch_recomputed_tokens: int = 0
