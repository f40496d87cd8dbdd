"""Counters of the scheduler since its start, which the engine's statistics report."""

from __future__ import annotations

import msgspec


class Totals(msgspec.Struct):
    """Counters of the scheduler since its start.

    Interactive work and the batch band count together but where a field says otherwise.
    """

    preemptions: int = 0
    """Times that an interactive choice gave its memory up and had to wait again."""
    prompt_tokens: int = 0
    """Prompt tokens computed, those that were computed again included."""
    generated_tokens: int = 0
    prefix_query_tokens: int = 0
    """Prompt tokens looked up in the prefix cache, each request counted once."""
    prefix_hit_tokens: int = 0
    """Prompt tokens found in the prefix cache, each request counted once."""
    draft_tokens: int = 0
    """Tokens that speculation proposed."""
    accepted_draft_tokens: int = 0
    """Proposed tokens that became part of a completion."""
    batch_prompt_tokens: int = 0
    """Tokens of `prompt_tokens` that were computed for the batch band."""
    batch_generated_tokens: int = 0
    """Tokens of `generated_tokens` that were generated for the batch band."""
    batch_preemptions: int = 0
    """Times that a choice of the batch band gave its memory or its adapter's slot up; not part of `preemptions`."""
    batch_recomputed_tokens: int = 0
    """Tokens of the batch band that were computed again after a preemption."""
