"""The rotation of positions in a `config.json`, in the spellings of transformers 4 and 5. Knows no families' names."""

from __future__ import annotations

import math
from typing import Any

from engine.config.model import RopeParameters, UnsupportedModel

Raw = dict[str, Any]
KINDS = ("default", "linear", "llama3", "yarn", "longrope")


def rope_of(raw: Raw) -> RopeParameters:
    """Read `rope_parameters` (transformers 5), or else `rope_theta` with `rope_scaling` (transformers 4).

    Raises UnsupportedModel: for what is not computed, naming the key.
    """
    scaling = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if not isinstance(scaling, dict):
        raise UnsupportedModel("config.json: rope_parameters must be an object")
    return _rope(raw, scaling)


def ropes_by_kind(raw: Raw, local_theta: float) -> tuple[RopeParameters, RopeParameters]:
    """Return the rotation of layers that see everything and of those with a window.

    transformers 5 has one object for each; before, scaling was that of layers that see everything alone.
    """
    given = raw.get("rope_parameters")
    if isinstance(given, dict) and {"full_attention", "sliding_attention"} & given.keys():
        full, local = ({"rope_theta": raw.get("rope_theta")} | (given.get(kind) or {}) for kind in _BY_KIND)
    else:
        full = {"rope_theta": raw.get("rope_theta")} | (raw.get("rope_scaling") or given or {})
        local = {"rope_theta": local_theta}
    return _rope(raw, full), _rope(raw, local)


_BY_KIND = ("full_attention", "sliding_attention")


def _rope(raw: Raw, scaling: Raw) -> RopeParameters:
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    kind = "longrope" if kind == "su" else kind  # as Phi-3's first configs have it
    if kind not in KINDS:
        raise UnsupportedModel(f"config.json: rope type is {kind!r}; supported: {', '.join(KINDS)}")
    original = (
        scaling.get("original_max_position_embeddings")
        or (raw.get("original_max_position_embeddings") if kind == "longrope" else None)
        or raw["max_position_embeddings"]
    )
    if type(original) not in (int, float) or not 1 <= original < 2**31:
        raise UnsupportedModel("config.json: original_max_position_embeddings must be a number above 0")
    factor = float(scaling.get("factor") or raw["max_position_embeddings"] / original)
    rotary_dim = _rotary_dim(raw, scaling)
    return RopeParameters(
        theta=float(scaling.get("rope_theta") or raw.get("rope_theta") or 10000.0),
        kind=kind,
        rotary_dim=rotary_dim,
        factor=factor,
        low_freq_factor=float(scaling.get("low_freq_factor", 1.0)),
        high_freq_factor=float(scaling.get("high_freq_factor", 4.0)),
        original_max_position=int(original),
        beta_fast=float(scaling.get("beta_fast") or 32.0),
        beta_slow=float(scaling.get("beta_slow") or 1.0),
        truncate=bool(scaling.get("truncate", True)),
        attention_factor=_attention_factor(kind, scaling, factor, int(original)),
        short_factors=_factors(scaling, "short_factor", rotary_dim or _head_dim(raw)) if kind == "longrope" else (),
        long_factors=_factors(scaling, "long_factor", rotary_dim or _head_dim(raw)) if kind == "longrope" else (),
    )


def _head_dim(raw: Raw) -> int:
    return int(raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"])


def _rotary_dim(raw: Raw, scaling: Raw) -> int:
    """Return the number of each head's dimensions that are rotated; 0 for all."""
    share = scaling.get("partial_rotary_factor") or raw.get("partial_rotary_factor") or 1.0
    size = _head_dim(raw)
    found = int(size * share) if type(share) in (int, float) and 0 < share <= 1 else 0
    if found < 2 or found % 2 or size % 2:
        raise UnsupportedModel(
            f"config.json: partial_rotary_factor must rotate an even number of the {size} dimensions of a head"
        )
    return 0 if found == size else found


def _factors(scaling: Raw, key: str, rotary_dim: int) -> tuple[float, ...]:
    found = scaling.get(key)
    wanted = rotary_dim // 2
    if not isinstance(found, list) or len(found) != wanted or not all(_is_above_0(each) for each in found):
        raise UnsupportedModel(f"config.json: {key} must list {wanted} numbers above 0")
    return tuple(float(each) for each in found)


def _is_above_0(value: object) -> bool:
    return isinstance(value, (int, float)) and 0 < value < math.inf


def _attention_factor(kind: str, scaling: Raw, factor: float, original: int) -> float:
    """Return the factor of cos and sin.

    It is given; or YaRN's temperature 0.1 ln(factor) + 1, which DeepSeek's two mscale keys generalise; or LongRoPE's.
    """
    if kind not in ("yarn", "longrope"):
        return 1.0
    if scaling.get("attention_factor") is not None:
        return float(scaling["attention_factor"])
    if kind == "longrope":
        return math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0

    def temperature(mscale: float) -> float:
        return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0

    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        return temperature(scaling["mscale"]) / temperature(scaling["mscale_all_dim"])
    return temperature(1.0)
