"""The defaults that an adapter's owner sets for requests: plain data. Knows no field of the API by its name."""

from __future__ import annotations

import msgspec


class Defaults(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """None: what holds without an adapter. Bounds are those of `engine.protocol.SamplingParams`.

    max_tokens: how many a request gets that names no number, where there is room. system_prompt: the first message of
    a conversation without a system message.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    max_tokens: int | None = None
    system_prompt: str | None = None


NO_DEFAULTS = Defaults()

SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)
"""The fields that are `SamplingParams`' as well."""
