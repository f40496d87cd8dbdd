"""Everything about one request that the walk of a policy may depend on. Plain data."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class TargetFacts(msgspec.Struct, frozen=True):
    """The present state of one model string that a policy names."""

    is_usable: bool = True
    """True where there is such a model, and the project may use it."""
    is_ready: bool = True
    """True where a replica of the model's pool takes requests, and the project has the key that the pool may need."""
    input_nanos: int = 0
    """The price of a million tokens of prompts, in nanos of the currency."""
    output_nanos: int = 0
    """The price of a million tokens of completions, in nanos of the currency."""
    first_token_ms: float | None = None
    """The measured time to the first token in milliseconds; None where there is no recent measurement."""
    late_ms: float | None = None
    """The time in milliseconds within which 19 of 20 first tokens arrived; None with too few measurements."""
    token_ms: float | None = None
    """The measured time per further token in milliseconds; None where there is no recent measurement."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about one request and its possible targets."""

    route_id: str
    """The policy's id, which seeds random choices."""
    request_id: str
    """The request's id, which seeds each random choice that is not sticky."""
    user: str | None = None
    """The end user that the request names."""
    key_id: str | None = None
    """The id of the API key."""
    metadata: Mapping[str, str | None] = {}
    """The values of the request's metadata under `document.metadata_keys`."""
    num_prompts: int = 1
    """The number of prompts."""
    prompt_tokens: int = 0
    """The estimated number of tokens of the prompts."""
    max_tokens: int = 256
    """The bound on each completion's tokens; where the request has none, a usual number."""
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
