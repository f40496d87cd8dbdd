"""Reads a model folder's `config.json`: the numbers that this engine computes with, or a refusal that names the key.

Knows no tensor and never imports torch. A key that the engine would compute wrongly is never passed over.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Literal

import msgspec

from engine.config.encoder import ENCODERS, encoder_config
from engine.config.families import FAMILIES, FULL, SLIDING, Family
from engine.config.general import general_config
from engine.config.gguf_file import gguf_of
from engine.config.model import ModelConfig, UnsupportedModel
from engine.config.quantized import MODELOPT_FILE, read_quantized
from engine.config.rope_keys import rope_of
from engine.config.task import files_of_task, task_of
from engine.config.values import MOST, beginning_of, number, whole_number

MOST_LAYERS, MOST_HEADS, MOST_WIDTH = 1000, 1 << 16, 1 << 24
"""Bounds that no model comes near, so that a wrong config takes neither time nor memory."""

SIZES = {
    "vocab_size": ("vocab_size", MOST_WIDTH),
    "hidden_size": ("hidden_size", MOST_WIDTH),
    "intermediate_size": ("intermediate_size", MOST_WIDTH),
    "num_layers": ("num_hidden_layers", MOST_LAYERS),
    "num_heads": ("num_attention_heads", MOST_HEADS),
    "max_position": ("max_position_embeddings", MOST),
}
"""The sizes of a model: the key of each in a config, and the most that it may be."""

OTHERS = frozenset(
    {
        *("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling", "logit_scale"),
        *("attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar", "no_rope_layers"),
        *(
            "num_experts",
            "num_local_experts",
            "n_routed_experts",
            "num_experts_per_tok",
            "n_shared_experts",
            "q_lora_rank",
            "kv_lora_rank",
            "use_qk_norm",
        ),
        *("alibi", "parallel_attn", "num_kv_shared_layers", "hidden_size_per_layer_input", "attn_temperature_tuning"),
        *("use_bidirectional_attention", "mamba_d_state", "linear_num_key_heads", "add_cross_attention"),
    }
)
"""Keys that change what some family computes: refused where they are on in a config of a family that lacks them."""

OFF: tuple[Any, ...] = (None, False, 0, 1, [], {}, "")

NONE_IS_OFF = ("sliding_window", "attn_logit_softcapping", "final_logit_softcapping")
"""Keys for which null is a value, as opposed to a missing key."""

DecoderChoice = Literal["auto", "own", "transformers"]


def load_model_config(model_dir: str | Path, decoder: DecoderChoice = "auto") -> ModelConfig:
    """Read `config.json` (and `generation_config.json` for its eos ids) of a model folder.

    decoder: `auto`: a model of FAMILIES is computed by the engine's own code, any other one by transformers.

    Raises UnsupportedModel: when the engine would compute something wrongly, naming the key.
    """
    folder = Path(model_dir)
    raw = _text_alone(_read_json(folder / "config.json"))
    family = raw.get("model_type")
    is_encoder = isinstance(family, str) and family in ENCODERS
    task = task_of(folder, raw, is_encoder=is_encoder)
    if is_encoder:
        return msgspec.structs.replace(encoder_config(folder, raw, task), embedding_sizes=_embedding_sizes(raw))
    config = _decoder_config(folder, raw, decoder)
    if task.kind == "text":
        return config
    if config.decoder == "transformers" and task.scored_by == "classifier":
        raise UnsupportedModel(
            f"config.json: model_type is {beginning_of(family)}, whose classifiers are not supported"
        )
    has_head = task.scored_by == "tokens"
    return msgspec.structs.replace(
        config,
        task=task,
        max_position=min(config.max_position, task.max_length or config.max_position),
        # Without a head of its own, which nothing would be computed by.
        tie_word_embeddings=config.tie_word_embeddings or not has_head,
    )


def _text_alone(raw: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of the text model of a config for text and images, where such models are computed without images.

    Raises UnsupportedModel: for a text model of another family than the config's.
    """
    wrapped = next((name for name, family in FAMILIES.items() if family.wrapper == raw.get("model_type") != ""), None)
    if wrapped is None:
        return raw
    text = raw.get("text_config")
    if not isinstance(text, dict) or text.get("model_type", wrapped) != wrapped:
        raise UnsupportedModel(f"config.json: text_config must be of the model_type {wrapped}")
    outside = ("tie_word_embeddings", "eos_token_id", "quantization_config", "architectures", "is_causal")
    return {key: raw[key] for key in outside if key in raw} | text | {"model_type": wrapped}


def _decoder_config(folder: Path, raw: dict[str, Any], decoder: DecoderChoice) -> ModelConfig:
    if raw.get("is_causal", True) is not True:
        raise UnsupportedModel("config.json: is_causal: attention in both directions is not supported")
    family = raw.get("model_type")
    if decoder == "transformers" or (decoder == "auto" and isinstance(family, str) and not _is_own(family, raw)):
        if gguf_of(folder) is not None:
            raise UnsupportedModel(
                f"config.json: model_type is {beginning_of(family)}; of GGUF files only {', '.join(FAMILIES)}"
            )
        general = general_config(folder, raw, _eos_token_ids(raw, folder))
        return msgspec.structs.replace(general, embedding_sizes=_embedding_sizes(raw))
    if not isinstance(family, str) or family not in FAMILIES:
        raise UnsupportedModel(f"config.json: model_type is {beginning_of(family)}; supported: {', '.join(FAMILIES)}")
    if not FAMILIES[family].computes(raw):
        raise UnsupportedModel(f"config.json: of {family} the engine's own code does not compute this model")
    try:
        return _own_config(family, FAMILIES[family], _with_defaults(FAMILIES[family], raw), folder)
    except KeyError as missing:
        raise UnsupportedModel(f"config.json: {missing.args[0]} is missing") from None


def _is_own(family: str, raw: dict[str, Any]) -> bool:
    return family in FAMILIES and FAMILIES[family].computes(raw)


def _with_defaults(family: Family, raw: dict[str, Any]) -> dict[str, Any]:
    """Return a config with the family's values for keys that it leaves out, or sets to null without a meaning."""
    given = {key: value for key, value in raw.items() if value is not None or key in NONE_IS_OFF}
    # The rotation has two names, of which a config has one.
    left_out = {"rope_scaling"} if given.get("rope_parameters") else set()
    return {key: value for key, value in family.defaults.items() if key not in left_out} | given


def _own_config(name: str, family: Family, raw: dict[str, Any], folder: Path) -> ModelConfig:
    key, activation = family.activation
    if raw.get(key, activation) != activation:
        raise UnsupportedModel(f"config.json: {key} is {beginning_of(raw[key])}; supported for {name}: {activation!r}")
    if raw.get("mlp_bias", False):
        raise UnsupportedModel("config.json: mlp_bias is not supported")
    for other in sorted(OTHERS - {*family.keys}):
        if raw.get(other) not in OFF:
            raise UnsupportedModel(f"config.json: {other} is not supported for {name}")
    # Before anything is as long as a size says.
    sizes: dict[str, Any] = {field: whole_number(raw, key, most) for field, (key, most) in SIZES.items()}
    num_heads = sizes["num_heads"]
    num_kv_heads = whole_number(raw, "num_key_value_heads", MOST_HEADS, default=num_heads)
    if num_heads % num_kv_heads:
        raise UnsupportedModel("config.json: num_attention_heads must be a multiple of num_key_value_heads")
    fields = family.fields(raw)
    if "rope" not in fields:
        fields["rope"] = rope_of(raw)
    parts = {rope.rotary_dim for rope in (fields["rope"], fields.get("window_rope")) if rope is not None}
    # All layers have their heads in one order.
    if len(parts) > 1 or (parts != {0} and not family.rotates_partly):
        raise UnsupportedModel(f"config.json: partial_rotary_factor is not supported for {name}")
    has_experts = fields.get("experts") is not None
    quantized = read_quantized(folder, raw, has_experts=has_experts) if gguf_of(folder) is None else None
    if quantized is not None and fields.get("recurrence") is not None:
        raise UnsupportedModel(f"config.json: quantization_config is not supported for {name}")
    return ModelConfig(
        family=name,
        num_kv_heads=num_kv_heads,
        head_dim=whole_number(raw, "head_dim", MOST_WIDTH, default=sizes["hidden_size"] // num_heads),
        rms_norm_eps=number(raw, "rms_norm_eps", 1e-6),
        tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
        windows=_windows(family, raw),
        eos_token_ids=_eos_token_ids(raw, folder),
        embedding_sizes=_embedding_sizes(raw),
        quantized=quantized,
        **(sizes | fields),
    )


def _embedding_sizes(raw: dict[str, Any]) -> tuple[int, ...]:
    """Return the sizes to which the model's embeddings may be shortened, as the model was trained for.

    The training is Matryoshka Representation Learning (Kusupati et al., 2022). vLLM reads two keys, and so does this: a
    list of sizes, or that any size will do.

    Raises UnsupportedModel: for sizes that an embedding of this model cannot have.
    """
    size, named = (
        whole_number(raw, "hidden_size", MOST_WIDTH, default=whole_number(raw, "dim", MOST_WIDTH, default=1)),
        raw.get("matryoshka_dimensions"),
    )
    if not named:
        return tuple(range(1, size + 1)) if raw.get("is_matryoshka") is True else ()
    if not isinstance(named, list) or not all(type(each) is int and 0 < each <= size for each in named):
        raise UnsupportedModel(f"config.json: matryoshka_dimensions must be a list of integers in 1..{size}")
    return tuple(sorted({*named, size}))


def _windows(family: Family, raw: dict[str, Any]) -> tuple[int | None, ...]:
    """Return the window of each layer; () where all layers see everything.

    Raises UnsupportedModel: when the config does not say which layers have the window.
    """
    window = raw.get("sliding_window")
    if window is None or not raw.get("use_sliding_window", False):
        return ()
    num_layers = raw["num_hidden_layers"]
    window = whole_number(raw, "sliding_window")
    kinds = raw.get("layer_types") or family.kinds(raw)
    known = {FULL: None, SLIDING: window}
    if not isinstance(kinds, list) or len(kinds) != num_layers or not all(kind in (FULL, SLIDING) for kind in kinds):
        raise UnsupportedModel(
            f"config.json: layer_types must list {num_layers} times full_attention or sliding_attention"
        )
    return tuple(known[kind] for kind in kinds) if SLIDING in kinds else ()


def _eos_token_ids(raw: dict[str, Any], folder: Path) -> tuple[int, ...]:
    generation = folder / "generation_config.json"
    eos = _read_json(generation).get("eos_token_id") if generation.exists() else None
    eos = raw.get("eos_token_id") if eos is None else eos
    ids = [] if eos is None else eos if isinstance(eos, list) else [eos]
    if not all(type(each) is int and 0 <= each < 1 << 31 for each in ids):
        raise UnsupportedModel("config.json: eos_token_id must be an id, or a list of ids")
    return tuple(ids)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        raw = msgspec.json.decode(path.read_bytes())
    except FileNotFoundError:
        raise UnsupportedModel(f"{path} does not exist") from None
    except OSError as error:
        raise UnsupportedModel(f"{path} cannot be read: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnsupportedModel(f"{path} is not JSON: {error}") from None
    if not isinstance(raw, dict):
        raise UnsupportedModel(f"{path} is not a JSON object")
    return raw


def model_digest(model_dir: str | Path) -> str:
    """Return the identity of a base model: SHA-256 over its configs, its task's files and its weights' heads.

    The head of a file of weights is its name, size and header.

    Reads kilobytes, not gigabytes: the digest tells models apart in a hello, it does not prove the weights' integrity.

    Raises UnsupportedModel: when a file cannot be read.
    """
    try:
        return _digest(Path(model_dir))
    except OSError as error:
        raise UnsupportedModel(f"{error.filename} cannot be read: {error.strerror}") from None


def _digest(folder: Path) -> str:
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for path in files_of_task(folder):
        digest.update(path.read_bytes())
    if (folder / MODELOPT_FILE).exists():
        digest.update(f"{MODELOPT_FILE}:".encode() + (folder / MODELOPT_FILE).read_bytes())
    blocks = gguf_of(folder)
    for path in sorted(folder.glob("*.safetensors")) if blocks is None else [blocks]:
        digest.update(f"{path.name}:{path.stat().st_size}:".encode())
        with path.open("rb") as file:
            digest.update(file.read(1 << 16))
    return digest.hexdigest()
