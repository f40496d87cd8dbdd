"""An encoder, such as BERT, as its `config.json` and the heads of its files tell it: each token sees all others.

The model class of the installed transformers computes it (`engine.models.encoder`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.config.general import linear_modules, matrices_of, sizes_of
from engine.config.model import ModelConfig, RopeParameters, Task, UnsupportedModel

PADDED = frozenset({"roberta", "xlm-roberta", "camembert"})
"""Families whose positions are counted from behind the id of the padding token."""
ENCODERS = PADDED | {"bert", "distilbert", "electra", "eurobert", "gte", "modernbert", "nomic_bert"}
"""The families of encoders, by their model_type: each is tried by tests."""

_REFUSED = {
    "is_decoder": "an encoder that is used as a decoder is not supported",
    "add_cross_attention": "cross attention is not supported",
    "quantization_config": "quantized weights are not supported for an encoder",
}


def encoder_config(folder: Path, raw: Mapping[str, Any], task: Task) -> ModelConfig:
    """Return the configuration of an encoder.

    Raises UnsupportedModel: when a key asks for something that the engine does not compute; the error names the key.
    """
    for key, why in _REFUSED.items():
        if raw.get(key):
            raise UnsupportedModel(f"config.json: {key}: {why}")
    if raw.get("position_embedding_type", "absolute") not in ("absolute", "rope", "rotary"):
        raise UnsupportedModel("config.json: position_embedding_type: positions by distance are not supported")
    if task.scored_by == "tokens":
        raise UnsupportedModel("modules.json: LogitScore is for decoders; an encoder ranks by a classifier")
    sizes = sizes_of(raw)
    longest = sizes["max_position"]
    if raw.get("model_type") in PADDED:
        longest -= 1 + _pad_id(raw)
    if longest < 1 or sizes["hidden_size"] < sizes["num_heads"]:
        raise UnsupportedModel("config.json: the sizes leave no position, or no head")
    return ModelConfig(
        family=str(raw["model_type"]),
        vocab_size=sizes["vocab_size"],
        hidden_size=sizes["hidden_size"],
        intermediate_size=0,
        num_layers=sizes["num_layers"],
        num_heads=sizes["num_heads"],
        num_kv_heads=sizes["num_heads"],
        head_dim=sizes["hidden_size"] // sizes["num_heads"],
        rms_norm_eps=0.0,
        rope=RopeParameters(theta=0.0),
        max_position=min(longest, task.max_length or longest),
        tie_word_embeddings=True,
        decoder="transformers",
        is_encoder=True,
        task=task,
        modules=linear_modules(matrices_of(folder), sizes["num_layers"]),
    )


def _pad_id(raw: Mapping[str, Any]) -> int:
    pad_id = raw.get("pad_token_id", 1)
    if type(pad_id) is not int or pad_id < 0:
        raise UnsupportedModel("config.json: pad_token_id must be a token id")
    return pad_id
