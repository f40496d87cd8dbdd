"""Everything about one request that the walk of a policy may depend on. Plain data."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class TargetFacts(msgspec.Struct, frozen=True):
    """One model string of a policy, as it is at this moment."""

    is_usable: bool = True
    """True where there is such a model, and the project may use it."""
    is_ready: bool = True
    """True where a replica of the model's pool takes requests, and the project has the key that the pool may need."""
    input_nanos: int = 0
    """The price of a million tokens of prompts, in nanos of the currency."""
    output_nanos: int = 0
    """The price of a million tokens of completions, in nanos of the currency."""
    first_token_ms: float | None = None
    """The measured time to the first token; None where there is no recent measurement."""
    late_ms: float | None = None
    """The time in which 19 of 20 first tokens came; None where too few were measured."""
    token_ms: float | None = None
    """The measured time of each further token."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about one request and its possible targets."""

    route_id: str
    """The policy's id, under which draws are made."""
    request_id: str
    """The id of the request, which decides each draw that is not sticky."""
    user: str | None = None
    """The end user that the request names."""
    key_id: str | None = None
    """The id of the API key."""
    metadata: Mapping[str, str | None] = {}
    """The values of the request's metadata under `document.metadata_keys`."""
    num_prompts: int = 1
    """The number of prompts."""
    prompt_tokens: int = 0
    """The estimated size of the prompt."""
    max_tokens: int = 256
    """The most tokens of each completion, or as many as are usual."""
    n: int = 1
    """The number of completions, of all prompts together. They are generated side by side."""
    tools: bool = False
    """True where the request brings tools."""
    tier: str = "default"
    """The service tier."""
    stream: bool = False
    """True where the reply is streamed."""
    minute: int = 0
    """The minute of the day in UTC, 0 to 1,439."""
    targets: Mapping[str, TargetFacts] = {}
    """The facts of each target; one that is not here cannot be used."""
