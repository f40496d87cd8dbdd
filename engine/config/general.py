"""A base model that the engine has no code of its own for, as its `config.json` and the heads of its files tell it.

The model class of the installed transformers computes such a model (`engine.models.general`). This file reads what
gateways need, without torch: sizes, and the linear modules that adapters may target. It refuses what a key of the
config shows; the engine finds the rest, since it tries the model before it serves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from adapters.patterns.module_names import BLOCK_OF_PROJECTION, is_of_expert, module_key
from engine.config.model import ModelConfig, RopeParameters, UnsupportedModel

KINDS = ("full_attention", "sliding_attention")
MAX_HEADER_BYTES = 100 << 20

# Keys that ask for what no paged cache of keys and values holds, or what this path does not compute.
_REFUSED = {
    "is_encoder_decoder": "encoder-decoders are not supported",
    "add_cross_attention": "cross attention is not supported",
    "cross_attention_layers": "cross attention is not supported",
    "alibi": "positions by ALiBi are not supported",
    "quantization_config": "quantized weights are not supported for a model that transformers computes",
    "vision_config": "of models for text and images only those of text alone are supported",
    "text_config": "of models for text and images only those of text alone are supported",
    "audio_config": "of models for text and audio only those of text alone are supported",
    "use_bidirectional_attention": "attention in both directions is not supported",
}
# The spellings of a size in configs of different ages.
_SPELLINGS = {
    "hidden_size": ("hidden_size", "n_embd", "d_model", "dim"),
    "num_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "num_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "max_position": ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"),
    "vocab_size": ("vocab_size",),
}
MOST = 1 << 31
MOST_LAYERS = 999  # as many as names of modules are read for


def general_config(folder: Path, raw: Mapping[str, Any], eos_token_ids: tuple[int, ...]) -> ModelConfig:
    """Return the configuration of a model that transformers computes.

    Raises UnsupportedModel: when a key asks for something that this path does not compute; the error names the key.
    """
    for key, why in _REFUSED.items():
        if raw.get(key):
            raise UnsupportedModel(f"config.json: {key}: {why}")
    sizes = sizes_of(raw)
    _check_kinds(raw, sizes["num_layers"])
    num_kv_heads = raw.get("num_key_value_heads") or sizes["num_heads"]
    head_dim = raw.get("head_dim") or sizes["hidden_size"] // sizes["num_heads"]
    for key, value in (("num_key_value_heads", num_kv_heads), ("head_dim", head_dim)):
        if type(value) is not int or not 0 < value < MOST:
            raise UnsupportedModel(f"config.json: {key} must be a whole number above 0")
    return ModelConfig(
        family=str(raw.get("model_type")),
        vocab_size=sizes["vocab_size"],
        hidden_size=sizes["hidden_size"],
        intermediate_size=0,
        num_layers=sizes["num_layers"],
        num_heads=sizes["num_heads"],
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rms_norm_eps=0.0,
        rope=RopeParameters(theta=0.0),
        max_position=min(sizes["max_position"], _longest_of_rope(raw)),
        tie_word_embeddings=raw.get("tie_word_embeddings") is True,
        eos_token_ids=eos_token_ids,
        decoder="transformers",
        modules=linear_modules(matrices_of(folder), sizes["num_layers"]),
    )


def linear_modules(
    matrices: Iterable[tuple[str, tuple[int, ...]]], num_layers: int
) -> tuple[tuple[str, int, int], ...]:
    """Return the modules that adapters may target, as (short name, in_features, out_features).

    matrices: the name of each linear module, and the shape [out, in] of its weight. A module counts if it is in each
    layer with one shape, since an adapter's fit is checked for all layers alike; parts of experts do not count, and
    neither do norms with a weight for each head (Command R).
    """
    shapes: dict[str, dict[int, tuple[int, ...]]] = {}
    for name, shape in matrices:
        key = module_key(name)
        if key is not None and len(shape) == 2 and not is_of_expert(key[1]) and not key[1].endswith("norm"):
            shapes.setdefault(key[1], {})[key[0]] = shape
    found = []
    for short, by_layer in shapes.items():
        if by_layer.keys() == set(range(num_layers)) and len(set(by_layer.values())) == 1:
            num_out, num_in = by_layer[0]
            found.append((short, num_in, num_out))
    usual = list(BLOCK_OF_PROJECTION)
    return tuple(sorted(found, key=lambda each: (usual.index(each[0]) if each[0] in usual else len(usual), each[0])))


def sizes_of(raw: Mapping[str, Any]) -> dict[str, int]:
    """Return the sizes of a model, by the fields of `ModelConfig`.

    Raises UnsupportedModel: when a size is missing or no number, or there are more than `MOST_LAYERS` layers.
    """
    sizes = {field: _size(raw, field, spellings) for field, spellings in _SPELLINGS.items()}
    if sizes["num_layers"] > MOST_LAYERS:
        raise UnsupportedModel(f"config.json: num_hidden_layers is {sizes['num_layers']}; at most {MOST_LAYERS}")
    return sizes


def _size(raw: Mapping[str, Any], field: str, spellings: tuple[str, ...]) -> int:
    for key in spellings:
        value = raw.get(key)
        if value is not None:
            if type(value) is not int or not 0 < value < MOST:
                raise UnsupportedModel(f"config.json: {key} must be a whole number above 0")
            return value
    raise UnsupportedModel(f"config.json: {spellings[0]} is missing")


def _check_kinds(raw: Mapping[str, Any], num_layers: int) -> None:
    """Check that all layers attend to all tokens before them, or to those within a window.

    Raises UnsupportedModel: when layers are of another kind; the error has the kinds.
    """
    for key in ("layer_types", "layers_block_type", "block_types"):
        kinds = raw.get(key)
        if kinds is None:
            continue
        if not isinstance(kinds, list) or not all(isinstance(kind, str) for kind in kinds):
            raise UnsupportedModel(f"config.json: {key} must be a list of names")
        others = sorted({kind[:60] for kind in kinds} - {*KINDS, "attention"})
        if others:
            raise UnsupportedModel(
                f"config.json: {key} has layers of {', '.join(others[:5])}; supported: {', '.join(KINDS)}"
            )
        if key == "layer_types" and len(kinds) != num_layers:
            raise UnsupportedModel(f"config.json: {key} names {len(kinds)} layers of {num_layers}")


def _longest_of_rope(raw: Mapping[str, Any]) -> int:
    """Return the number of positions for which the rotation does not depend on how long a sequence is.

    LongRoPE has other angles for sequences beyond the original length, which keys in the cache could not follow.

    Raises UnsupportedModel: for a rotation whose angles change at each length.
    """
    told = [raw.get("rope_parameters") or {}, raw.get("rope_scaling") or {}]
    if not all(isinstance(each, dict) for each in told):
        raise UnsupportedModel("config.json: rope_parameters must be an object")
    longest = MOST
    for scaling in (*told, *(each for given in told for each in given.values() if isinstance(each, dict))):
        kind = scaling.get("rope_type") or scaling.get("type") or "default"
        if kind == "dynamic":
            raise UnsupportedModel("config.json: rope type dynamic is not supported: its angles change with the length")
        if kind == "longrope":
            original = scaling.get("original_max_position_embeddings") or raw.get("original_max_position_embeddings")
            if type(original) is not int or original < 1:
                raise UnsupportedModel("config.json: original_max_position_embeddings is missing")
            longest = min(longest, original)
    return longest


def tensors_of(folder: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the name and the shape of each tensor, from the heads of a folder's files.

    Nothing is yielded of a file in another format than safetensors: the engine refuses it when it loads the weights.
    """
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with path.open("rb") as file:
                num_bytes = int.from_bytes(file.read(8), "little")
                head = msgspec.json.decode(file.read(min(num_bytes, MAX_HEADER_BYTES)), type=dict[str, dict[str, Any]])
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        for name, entry in head.items():
            shape = entry.get("shape")
            if isinstance(shape, list) and all(type(size) is int and size >= 0 for size in shape):
                yield name, tuple(shape)


def matrices_of(folder: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the name of each module that has a weight, and the weight's shape."""
    for name, shape in tensors_of(folder):
        if name.endswith(".weight"):
            yield name.removesuffix(".weight"), shape
