"""Keys of feed-forward parts of which a router chooses some for each token (Shazeer et al., 2017)."""

from __future__ import annotations

from typing import Any

from engine.config.model import Experts, UnsupportedModel
from engine.config.values import number, whole_number

Raw = dict[str, Any]
MOST_EXPERTS = 1 << 12


def experts_of(raw: Raw, count_key: str, *, normalized: bool, **fields: Any) -> Experts:
    """Return the experts of a config.

    count_key: the key of their number. normalized: True: the shares of a token's chosen experts sum to 1.
    fields: further fields of `Experts`.

    Raises UnsupportedModel: for numbers that do not go together.
    """
    count = whole_number(raw, count_key, MOST_EXPERTS)
    chosen = whole_number(raw, "num_experts_per_tok", MOST_EXPERTS)
    if chosen > count:
        raise UnsupportedModel(f"config.json: num_experts_per_tok must be at most {count_key}")
    return Experts(count, chosen, normalized, **fields)


def clamp_of(raw: Raw) -> tuple[float, float]:
    """Return the slope and the bound of gpt-oss's gate.

    Raises UnsupportedModel: for something else than numbers.
    """
    return number(raw, "swiglu_alpha", 1.702), number(raw, "swiglu_limit", 7.0, above=0)
