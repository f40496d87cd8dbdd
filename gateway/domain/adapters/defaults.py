"""The defaults that an adapter's owner sets for requests: plain data. Knows no field of the API by its name."""

from __future__ import annotations

import msgspec


class Defaults(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Values for fields that a request leaves out; null leaves a field as it is without an adapter.

    The bounds are the same as in `engine.protocol.SamplingParams`.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    max_tokens: int | None = None
    """The most tokens that a request without a number of its own generates, where there is room."""
    system_prompt: str | None = None
    """The first message of a conversation that has no system message."""


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
"""The names of the fields that `SamplingParams` has as well."""
