"""The scaling of a GGUF file's rotation, as a `config.json` says it. transformers makes a config without it.

llama.cpp's files say it by keys (linear, YaRN), by a tensor of the factors of each wavelength (Llama 3.1 and later), or
by two (LongRoPE). From the factors of Llama 3 follow the numbers of the config, which are checked against all of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.config.gguf_file import LONG_FACTORS, ROTATION_FACTORS, SHORT_FACTORS, GgufFile, read_gguf

TOLERANCE = 1e-3
"""The largest relative error of a factor that the numbers of a config may cause."""

_HARMLESS = ("type", "original_context_length", "finetuned")
"""Keys of a scaling that do not change angles by themselves."""

_PARTLY_ROTATED = ("phi3", "glm4")
"""Architectures that may rotate a part of each head."""


class UnknownRotation(ValueError):
    """The error for a file that scales its rotation in a way that no config can express; the message names it."""


class Rotation(msgspec.Struct, frozen=True):
    """The rotation of a GGUF file, beyond the base of its angles."""

    scaling: dict[str, Any] = {}
    """Keys of `rope_parameters`; none where the angles are not scaled."""
    factors: tuple[float, ...] = ()
    """The factors of each wavelength from which keys of `llama3` are to be found."""
    rotary_dim: int = 0
    """The number of each head's dimensions that are rotated; 0: all."""


def read_rotation(file: Path) -> Rotation:
    """Return the rotation of a GGUF file.

    Raises UnknownRotation: when the kind of scaling is not known, or the file has a key that the kind does not have.
    Raises NotGguf: when the file is not a GGUF file, is cut off, or has a format that is not known.
    Raises OSError: when the file cannot be opened.
    """
    head = read_gguf(file)
    keys = head.rotation_keys
    rotary_dim = int(keys.get("rope.dimension_count", 0)) if head.architecture in _PARTLY_ROTATED else 0
    original = keys.get("rope.scaling.original_context_length")
    factor = keys.get("rope.scaling.factor")
    kind = keys.get("rope.scaling.type", "linear" if factor else "none")
    is_unscaled = kind == "none" or (kind == "linear" and factor in (None, 0.0, 1.0))
    if LONG_FACTORS in head.rotation_tensors and SHORT_FACTORS in head.rotation_tensors:
        _refuse_others(keys, "longrope" if is_unscaled else kind, "longrope", "attn_factor")
        scaling = {
            "rope_type": "longrope",
            "short_factor": _numbers(file, head, SHORT_FACTORS).tolist(),
            "long_factor": _numbers(file, head, LONG_FACTORS).tolist(),
            "attention_factor": keys.get("rope.scaling.attn_factor"),
            "original_max_position_embeddings": original,
        }
        return Rotation(_without_none(scaling), rotary_dim=rotary_dim)
    if ROTATION_FACTORS in head.rotation_tensors:
        _refuse_others(keys, "none" if is_unscaled else kind, "none")
        return Rotation(factors=tuple(_numbers(file, head, ROTATION_FACTORS).tolist()), rotary_dim=rotary_dim)
    if is_unscaled:
        _refuse_others(keys, "none", "none", "factor")
        return Rotation(rotary_dim=rotary_dim)
    if kind == "linear":
        _refuse_others(keys, kind, "linear", "factor")
        return Rotation({"rope_type": "linear", "factor": factor}, rotary_dim=rotary_dim)
    if kind == "yarn" and factor:
        _refuse_others(keys, kind, "yarn", "factor", "yarn_beta_fast", "yarn_beta_slow")
        scaling = {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": original,
            "beta_fast": keys.get("rope.scaling.yarn_beta_fast"),
            "beta_slow": keys.get("rope.scaling.yarn_beta_slow"),
        }
        return Rotation(_without_none(scaling), rotary_dim=rotary_dim)
    raise UnknownRotation(f"its rotation is scaled by {kind!r} with keys that are not known; use safetensors")


def _refuse_others(keys: Mapping[str, float | str], kind: float | str, computed: str, *names: str) -> None:
    """Check that a file has no other kind of scaling than the computed one, and no keys besides the named ones.

    Raises UnknownRotation: when it has; the error has the key.
    """
    if kind != computed:
        raise UnknownRotation(f"its rotation is scaled by factors and by {kind!r} at once; use safetensors")
    known = {f"rope.scaling.{name}" for name in (*_HARMLESS, *names)}
    others = sorted(key for key in keys if key.startswith("rope.scaling.") and key not in known)
    others = [key for key in others if key != "rope.scaling.factor" or keys[key] not in (0.0, 1.0)]
    if others:
        raise UnknownRotation(f"its rotation is scaled by {', '.join(others)}, which is not known; use safetensors")


def with_rotation(config: dict[str, Any], rotation: Rotation) -> dict[str, Any]:
    """Return a config with the rotation in it.

    Raises UnknownRotation: when the factors are not those of `llama3`.
    """
    if rotation == Rotation():
        return config
    given = config.get("rope_parameters") or {}
    by_kind = "full_attention" in given  # of which layers with a window are never scaled
    before = (given["full_attention"] or {}) if by_kind else given
    theta = float(before.get("rope_theta") or config.get("rope_theta") or 10000.0)
    scaling = llama3_scaling(np.array(rotation.factors), theta) if rotation.factors else rotation.scaling
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    share = {"partial_rotary_factor": rotation.rotary_dim / head_dim} if rotation.rotary_dim else {}
    base = {} if by_kind and "rope_theta" not in before else {"rope_theta": theta}  # else that of the family
    rope = {"rope_type": "default"} | before | base | scaling | share
    rope = given | {"full_attention": rope} if by_kind else rope
    return {key: value for key, value in config.items() if key != "rope_scaling"} | {"rope_parameters": rope}


def is_scaled(config: dict[str, Any]) -> bool:
    """Tell whether a config scales a rotation."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    objects = [rope, *(each for each in rope.values() if isinstance(each, dict))]
    return any((each.get("rope_type") or each.get("type") or "default") != "default" for each in objects)


def llama3_scaling(factors: NDArray[np.float64], theta: float) -> dict[str, Any]:
    """Return the keys of a `llama3` scaling that give these factors by wavelength; {} if all factors are 1.

    Short wavelengths have factor 1 and long ones the largest factor; between them the inverse of the factor is linear
    in the inverse of the wavelength. The factors give only the quotient of low_freq_factor and
    original_max_position_embeddings, so low_freq_factor is set to 1, as in all models of Llama 3.

    theta: the base of the angles.

    Raises UnknownRotation: when no keys give them.
    """
    largest = float(factors.max())
    if np.allclose(factors, 1.0, rtol=TOLERANCE):
        return {}
    turns = theta ** (-np.arange(len(factors)) / len(factors)) / (2 * math.pi)  # in one position
    between = (factors > 1 + TOLERANCE) & (factors < largest * (1 - TOLERANCE))
    if between.sum() >= 2:
        shares = (1 / factors[between] - 1 / largest) / (1 - 1 / largest)
        slope, offset = np.polyfit(turns[between], shares, 1)
        if offset < 0 < slope:
            high = 1 - 1 / float(offset)
            found = {
                "rope_type": "llama3",
                "factor": round(largest, 4),
                "low_freq_factor": 1.0,
                "high_freq_factor": round(high, 2),
                "original_max_position_embeddings": round(float(slope) * (high - 1)),
            }
            if np.allclose(_llama3_factors(found, turns), factors, rtol=TOLERANCE):
                return found
    raise UnknownRotation(f"{ROTATION_FACTORS} is not a scaling as Llama 3's; use safetensors")


def _llama3_factors(scaling: dict[str, Any], turns: NDArray[np.float64]) -> NDArray[np.float64]:
    original, low, high = (
        scaling[key] for key in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
    )
    share = np.clip((original * turns - low) / (high - low), 0, 1)
    return np.asarray(1 / ((1 - share) / scaling["factor"] + share))


def _numbers(file: Path, head: GgufFile, name: str) -> NDArray[np.float64]:
    tensor = head.rotation_tensors[name]
    if tensor.format != "F32" or len(tensor.shape) != 1:
        raise UnknownRotation(f"{name} is {list(tensor.shape)} in {tensor.format}, not a list of 32-bit numbers")
    found = np.fromfile(file, dtype=np.float32, count=tensor.shape[0], offset=tensor.offset).astype(np.float64)
    if not np.isfinite(found).all() or (found <= 0).any():
        raise UnknownRotation(f"{name} holds numbers that are no factors")
    return found


def _without_none(scaling: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in scaling.items() if value is not None}
