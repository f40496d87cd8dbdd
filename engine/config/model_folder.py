"""Reads a model folder's `config.json`: the numbers that this engine computes with, or a refusal that names the key.

Knows no tensor and never imports torch. A key that the engine would compute wrongly is never passed over.
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any, Literal

import msgspec

from engine.config.general import general_config
from engine.config.gguf_file import gguf_of
from engine.config.model import ModelConfig, RopeParameters, UnsupportedModel

DecoderChoice = Literal["auto", "own", "transformers"]
FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "smollm3", "granite", "gemma3_text")


def load_model_config(model_dir: str | Path, decoder: DecoderChoice = "auto") -> ModelConfig:
    """Read `config.json` (and `generation_config.json` for its eos ids) of a model folder.

    decoder: `auto`: a family of FAMILIES is computed by the engine's own code, any other one by transformers.

    Raises UnsupportedModel: when the engine would compute something wrongly, naming the key.
    """
    folder = Path(model_dir)
    raw = _read_json(folder / "config.json")
    family = raw.get("model_type")
    if decoder == "transformers" or (decoder == "auto" and isinstance(family, str) and family not in FAMILIES):
        if gguf_of(folder) is not None:
            raise UnsupportedModel(f"config.json: model_type is {family!r}; of GGUF files only {', '.join(FAMILIES)}")
        general = general_config(folder, raw, _eos_token_ids(raw, folder))
        return msgspec.structs.replace(general, embedding_sizes=_embedding_sizes(raw))
    if family not in FAMILIES:
        raise UnsupportedModel(f"config.json: model_type is {family!r}; supported: {', '.join(FAMILIES)}")
    key, activation = ("hidden_activation", "gelu_pytorch_tanh") if family == "gemma3_text" else ("hidden_act", "silu")
    if raw.get(key, activation) != activation:
        raise UnsupportedModel(f"config.json: {key} is {raw[key]!r}; supported for {family}: {activation!r}")
    if raw.get("mlp_bias", False):
        raise UnsupportedModel("config.json: mlp_bias is not supported")
    try:
        if family == "gemma3_text":
            return _gemma3(raw, folder)
        config = _model_config(family, raw, folder)
        return msgspec.structs.replace(config, **_multipliers(raw)) if family == "granite" else config
    except KeyError as missing:
        raise UnsupportedModel(f"config.json: {missing.args[0]} is missing") from None


def _model_config(family: str, raw: dict[str, Any], folder: Path) -> ModelConfig:
    num_heads = raw["num_attention_heads"]
    return ModelConfig(
        family=family,
        vocab_size=raw["vocab_size"],
        hidden_size=raw["hidden_size"],
        intermediate_size=raw["intermediate_size"],
        num_layers=raw["num_hidden_layers"],
        num_heads=num_heads,
        num_kv_heads=raw.get("num_key_value_heads") or num_heads,
        head_dim=raw.get("head_dim") or raw["hidden_size"] // num_heads,
        rms_norm_eps=raw.get("rms_norm_eps", 1e-6),
        rope=_rope(raw),
        max_position=raw["max_position_embeddings"],
        tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
        qkv_bias=family == "qwen2" or bool(raw.get("attention_bias", False)),
        o_bias=family not in ("mistral", "qwen2") and bool(raw.get("attention_bias", False)),
        qk_norm=family == "qwen3",
        windows=_windows(family, raw),
        unrotated_layers=_unrotated_layers(raw) if family == "smollm3" else (),
        eos_token_ids=_eos_token_ids(raw, folder),
        embedding_sizes=_embedding_sizes(raw),
    )


def _gemma3(raw: dict[str, Any], folder: Path) -> ModelConfig:
    """Return the configuration of a Gemma 3 of text (Gemma Team, 2025, arXiv 2503.19786).

    Raises UnsupportedModel: for what only other versions of Gemma have.
    """
    for key in ("attn_logit_softcapping", "final_logit_softcapping", "use_bidirectional_attention"):
        if raw.get(key):
            raise UnsupportedModel(f"config.json: {key} is not supported")
    scalar = raw.get("query_pre_attn_scalar", 256)
    if type(scalar) not in (int, float) or not 0 < scalar < math.inf:
        raise UnsupportedModel("config.json: query_pre_attn_scalar must be a number above 0")
    full, local = _gemma3_rope(raw)
    raw = {"tie_word_embeddings": True, "head_dim": 256, "sliding_window": 4096, "use_sliding_window": True} | raw
    config = _model_config("gemma3_text", raw | {"rope_parameters": full}, folder)
    return msgspec.structs.replace(
        config,
        qk_norm=True,
        activation="gelu_tanh",
        norm_offset=1.0,
        output_norms=True,
        window_rope=_rope(raw | {"rope_parameters": local}),
        embedding_multiplier=math.sqrt(config.hidden_size),
        attention_multiplier=scalar**-0.5,
    )


def _gemma3_rope(raw: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the parameters of rotation of full layers and of those with a window, in either of the two spellings."""
    given = raw.get("rope_parameters")
    if isinstance(given, dict) and {"full_attention", "sliding_attention"} <= given.keys():
        return given["full_attention"] or {}, given["sliding_attention"] or {}
    full = {"rope_theta": raw.get("rope_theta") or 1e6} | (raw.get("rope_scaling") or {})
    return full, {"rope_theta": raw.get("rope_local_base_freq") or 1e4}


def _embedding_sizes(raw: dict[str, Any]) -> tuple[int, ...]:
    """Return the sizes to which the model's embeddings may be shortened, as the model was trained for.

    The training is Matryoshka Representation Learning (Kusupati et al., 2022). vLLM reads two keys, and so does this: a
    list of sizes, or that any size will do.

    Raises UnsupportedModel: for sizes that an embedding of this model cannot have.
    """
    size, named = raw.get("hidden_size", 0), raw.get("matryoshka_dimensions")
    if not named:
        return tuple(range(1, size + 1)) if raw.get("is_matryoshka") is True else ()
    if not isinstance(named, list) or not all(type(each) is int and 0 < each <= size for each in named):
        raise UnsupportedModel(f"config.json: matryoshka_dimensions must be a list of integers in 1..{size}")
    return tuple(sorted({*named, size}))


def _rope(raw: dict[str, Any]) -> RopeParameters:
    """Read `rope_parameters` (transformers 5), or else `rope_theta` with `rope_scaling` (transformers 4)."""
    scaling = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind not in ("default", "linear", "llama3", "yarn"):
        raise UnsupportedModel(f"config.json: rope type is {kind!r}; supported: default, linear, llama3, yarn")
    if scaling.get("partial_rotary_factor", raw.get("partial_rotary_factor", 1.0)) != 1.0:
        raise UnsupportedModel("config.json: partial_rotary_factor other than 1.0 is not supported")
    original = scaling.get("original_max_position_embeddings") or raw["max_position_embeddings"]
    factor = float(scaling.get("factor") or raw["max_position_embeddings"] / original)
    return RopeParameters(
        theta=float(scaling.get("rope_theta") or raw.get("rope_theta") or 10000.0),
        kind=kind,
        factor=factor,
        low_freq_factor=float(scaling.get("low_freq_factor", 1.0)),
        high_freq_factor=float(scaling.get("high_freq_factor", 4.0)),
        original_max_position=int(original),
        beta_fast=float(scaling.get("beta_fast") or 32.0),
        beta_slow=float(scaling.get("beta_slow") or 1.0),
        truncate=bool(scaling.get("truncate", True)),
        attention_factor=_yarn_attention_factor(scaling, factor) if kind == "yarn" else 1.0,
    )


def _yarn_attention_factor(scaling: dict[str, Any], factor: float) -> float:
    """Return YaRN's attention factor.

    It is given, or by YaRN's temperature 0.1 ln(factor) + 1, which DeepSeek's two mscale keys generalise.
    """
    if scaling.get("attention_factor") is not None:
        return float(scaling["attention_factor"])

    def temperature(mscale: float) -> float:
        return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0

    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        return temperature(scaling["mscale"]) / temperature(scaling["mscale_all_dim"])
    return temperature(1.0)


def _windows(family: str, raw: dict[str, Any]) -> tuple[int | None, ...]:
    """Return the window of each layer; () where all layers see everything.

    Raises UnsupportedModel: when the config does not say which layers have the window.
    """
    window = raw.get("sliding_window")
    if window is None or not raw.get("use_sliding_window", family == "mistral"):
        return ()
    num_layers = raw["num_hidden_layers"]
    kinds = raw.get("layer_types") or _usual_kinds(family, raw, num_layers)
    known = {"full_attention": None, "sliding_attention": window}
    if not isinstance(kinds, list) or len(kinds) != num_layers or not all(kind in known for kind in kinds):
        raise UnsupportedModel(
            f"config.json: layer_types must list {num_layers} times full_attention or sliding_attention"
        )
    if type(window) is not int or window < 1:
        raise UnsupportedModel("config.json: sliding_window must be a whole number above 0")
    return tuple(known[kind] for kind in kinds) if "sliding_attention" in kinds else ()


def _usual_kinds(family: str, raw: dict[str, Any], num_layers: int) -> list[str]:
    """Return the kind of attention of each layer of a config that has windows and does not list its layers."""
    if family in ("qwen2", "qwen3"):  # the first max_window_layers layers see everything
        full = min(raw.get("max_window_layers", num_layers), num_layers)
        return ["full_attention"] * full + ["sliding_attention"] * (num_layers - full)
    if family == "gemma3_text":
        pattern = raw.get("sliding_window_pattern") or raw.get("_sliding_window_pattern") or 6
        return ["sliding_attention" if (layer + 1) % pattern else "full_attention" for layer in range(num_layers)]
    if family == "smollm3":
        unrotated = _unrotated_layers(raw)
        return ["sliding_attention" if layer in unrotated else "full_attention" for layer in range(num_layers)]
    return ["sliding_attention"] * num_layers


def _unrotated_layers(raw: dict[str, Any]) -> tuple[int, ...]:
    """Return the layers that SmolLM3 does not rotate.

    These are the layers at which `no_rope_layers` has a 0, or each `no_rope_layer_interval`-th layer.

    Raises UnsupportedModel: for another list.
    """
    num_layers, listed = raw["num_hidden_layers"], raw.get("no_rope_layers")
    if listed is None:
        interval = raw.get("no_rope_layer_interval", 4)
        if type(interval) is not int or interval < 1:
            raise UnsupportedModel("config.json: no_rope_layer_interval must be a whole number above 0")
        return tuple(range(interval - 1, num_layers, interval))
    if not isinstance(listed, list) or len(listed) != num_layers or not all(each in (0, 1) for each in listed):
        raise UnsupportedModel(f"config.json: no_rope_layers must list {num_layers} times 0 or 1")
    return tuple(layer for layer, is_rotated in enumerate(listed) if not is_rotated)


def _multipliers(raw: dict[str, Any]) -> dict[str, float]:
    """Return Granite's four factors.

    Raises UnsupportedModel: for one that is no finite number, or a divisor of 0.
    """
    keys = {
        "embedding_multiplier": "embedding_multiplier",
        "attention_multiplier": "attention_multiplier",
        "residual_multiplier": "residual_multiplier",
        "logits_divisor": "logits_scaling",
    }
    found = {field: raw.get(key, 1.0) for field, key in keys.items()}
    for field, value in found.items():
        if type(value) not in (int, float) or not math.isfinite(value) or (field == "logits_divisor" and value == 0):
            raise UnsupportedModel(f"config.json: {keys[field]} must be a finite number, and logits_scaling not 0")
    return {field: float(value) for field, value in found.items()}


def _eos_token_ids(raw: dict[str, Any], folder: Path) -> tuple[int, ...]:
    generation = folder / "generation_config.json"
    eos = _read_json(generation).get("eos_token_id") if generation.exists() else None
    eos = raw.get("eos_token_id") if eos is None else eos
    if eos is None:
        return ()
    return tuple(eos) if isinstance(eos, list) else (int(eos),)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        raw = msgspec.json.decode(path.read_bytes())
    except FileNotFoundError:
        raise UnsupportedModel(f"{path} does not exist") from None
    except msgspec.DecodeError as error:
        raise UnsupportedModel(f"{path} is not JSON: {error}") from None
    if not isinstance(raw, dict):
        raise UnsupportedModel(f"{path} is not a JSON object")
    return raw


def model_digest(model_dir: str | Path) -> str:
    """Return the identity of a base model: SHA-256 over its config and each weight file's name, size and header.

    Reads kilobytes, not gigabytes: the digest tells models apart in a hello, it does not prove the weights' integrity.
    """
    folder = Path(model_dir)
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    blocks = gguf_of(folder)
    for path in sorted(folder.glob("*.safetensors")) if blocks is None else [blocks]:
        digest.update(f"{path.name}:{path.stat().st_size}:".encode())
        with path.open("rb") as file:
            digest.update(file.read(1 << 16))
    return digest.hexdigest()
