"""The rotation of positions in a `config.json`, in the spellings of transformers 4 and 5. Knows no families' names."""

from __future__ import annotations

import math
from typing import Any

from engine.config.model import RopeParameters, UnsupportedModel
from engine.config.values import beginning_of, number, whole_number

Raw = dict[str, Any]
KINDS = ("default", "linear", "llama3", "yarn", "longrope")


def rope_of(raw: Raw) -> RopeParameters:
    """Read `rope_parameters` (transformers 5), or else `rope_theta` with `rope_scaling` (transformers 4).

    Raises UnsupportedModel: when a key asks for something that the engine does not compute; the error names the key.
    """
    return _rope(raw, scaling_of(raw))


def scaling_of(raw: Raw) -> Raw:
    """Return the object of the rotation's keys; {} where a config has none.

    Raises UnsupportedModel: for something else than an object, and for two objects that differ.
    """
    _check_one(raw)
    return _object_of("rope_parameters", raw.get("rope_parameters") or raw.get("rope_scaling"))


def _check_one(raw: Raw) -> None:
    """Check that the config describes the rotation of positions once: of two objects, transformers takes parts of both.

    Raises UnsupportedModel: when `rope_parameters` and `rope_scaling` differ.
    """
    given, scaling = raw.get("rope_parameters"), raw.get("rope_scaling")
    if given and scaling and given != scaling:
        raise UnsupportedModel("config.json: rope_scaling differs from rope_parameters, which is beside it")


def _object_of(key: str, value: Any) -> Raw:
    if value and not isinstance(value, dict):
        raise UnsupportedModel(f"config.json: {key} must be an object")
    return value or {}


def ropes_by_kind(raw: Raw, local_theta: float) -> tuple[RopeParameters, RopeParameters]:
    """Return the rotation of layers that see everything and of those with a window.

    transformers 5 has an object for each of the two; that of transformers 4 scales only layers that see everything.

    local_theta: the base of the angles of layers with a window, where the config has one object.

    Raises UnsupportedModel: when a key asks for something that the engine does not compute; the error names the key.
    """
    _check_one(raw)
    given = raw.get("rope_parameters")
    if isinstance(given, dict) and {"full_attention", "sliding_attention"} & given.keys():
        for key in sorted(given.keys() - {*_BY_KIND, "rope_theta"}):
            if given[key] not in (None, "default", 1):
                raise UnsupportedModel(f"config.json: rope_parameters has {key} beside those of each kind of layers")
        full, local = ({"rope_theta": raw.get("rope_theta")} | _object_of(kind, given.get(kind)) for kind in _BY_KIND)
    elif given and given != raw.get("rope_scaling"):  # transformers passes over the keys of one object for all layers
        raise UnsupportedModel(f"config.json: rope_parameters must have {' and '.join(_BY_KIND)}")
    else:
        full = {"rope_theta": raw.get("rope_theta")} | scaling_of({"rope_parameters": raw.get("rope_scaling")})
        local = {"rope_theta": local_theta}
    return _rope(raw, full), _rope(raw, local)


_BY_KIND = ("full_attention", "sliding_attention")


def _rope(raw: Raw, scaling: Raw) -> RopeParameters:
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    kind = "longrope" if kind == "su" else kind  # as Phi-3's first configs have it
    if not isinstance(kind, str) or kind not in KINDS:
        raise UnsupportedModel(f"config.json: rope type is {beginning_of(kind)}; supported: {', '.join(KINDS)}")
    positions = whole_number(raw, "max_position_embeddings")
    if kind == "longrope" and scaling.get("original_max_position_embeddings") is None:
        scaling = scaling | {"original_max_position_embeddings": raw.get("original_max_position_embeddings")}
        if scaling["original_max_position_embeddings"] is None:
            raise UnsupportedModel("config.json: original_max_position_embeddings is missing, which longrope needs")
    original = int(number(scaling, "original_max_position_embeddings", positions, above=0))
    factor = number(scaling, "factor", positions / max(original, 1), above=0)
    theta = number(scaling, "rope_theta", number(raw, "rope_theta", 10000.0, above=0), above=0)
    if original < 2 and kind in ("llama3", "yarn", "longrope"):
        raise UnsupportedModel("config.json: original_max_position_embeddings must be a whole number above 1")
    if theta <= 1 and kind == "yarn":
        raise UnsupportedModel("config.json: rope_theta must be a number above 1")
    rotary_dim = _rotary_dim(raw, scaling)
    low, high = number(scaling, "low_freq_factor", 1.0, above=0), number(scaling, "high_freq_factor", 4.0, above=0)
    if kind == "llama3" and low >= high:
        raise UnsupportedModel("config.json: high_freq_factor must be above low_freq_factor")
    return RopeParameters(
        theta=theta,
        kind=kind,
        rotary_dim=rotary_dim,
        factor=factor,
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_position=original,
        beta_fast=number(scaling, "beta_fast", 32.0, above=0),
        beta_slow=number(scaling, "beta_slow", 1.0, above=0),
        truncate=bool(scaling.get("truncate", True)),
        attention_factor=_attention_factor(kind, scaling, factor, original),
        short_factors=_factors(scaling, "short_factor", rotary_dim or _head_dim(raw)) if kind == "longrope" else (),
        long_factors=_factors(scaling, "long_factor", rotary_dim or _head_dim(raw)) if kind == "longrope" else (),
    )


def _head_dim(raw: Raw) -> int:
    return whole_number(
        raw, "head_dim", default=whole_number(raw, "hidden_size") // whole_number(raw, "num_attention_heads")
    )


def _rotary_dim(raw: Raw, scaling: Raw) -> int:
    """Return the number of each head's dimensions that are rotated; 0 for all."""
    share = number(scaling, "partial_rotary_factor", number(raw, "partial_rotary_factor", 1.0))
    size = _head_dim(raw)
    found = int(size * share) if 0 < share <= 1 else 0
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


def _is_above_0(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value < 1e30


def _attention_factor(kind: str, scaling: Raw, factor: float, original: int) -> float:
    """Return the factor of cos and sin: 1 without YaRN and LongRoPE.

    The config gives the factor, or else the method: YaRN's temperature 0.1 ln(factor) + 1, which DeepSeek's two mscale
    keys generalise, or LongRoPE's factor.

    original: the longest position before the scaling.
    """
    if kind not in ("yarn", "longrope"):
        return 1.0
    if scaling.get("attention_factor") is not None:
        return number(scaling, "attention_factor", 1.0, above=0)
    if kind == "longrope":
        return math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0

    def temperature(mscale: float) -> float:
        return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0

    mscale, mscale_all_dim = number(scaling, "mscale", 0.0), number(scaling, "mscale_all_dim", 0.0)
    if mscale and mscale_all_dim and temperature(mscale_all_dim):
        return temperature(mscale) / temperature(mscale_all_dim)
    return temperature(1.0)
