"""Tiny random models that embed or rank, as sentence-transformers lays out their folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    PreTrainedModel,
)

SIZES: dict[str, Any] = {
    "vocab_size": 199,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "initializer_range": 0.2,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "cls_token_id": 0,
    "sep_token_id": 2,
}
ENCODERS: dict[str, dict[str, Any]] = {
    "bert": {"max_position_embeddings": 128, "pad_token_id": 0},
    "roberta": {"max_position_embeddings": 130, "type_vocab_size": 1},
    "xlm-roberta": {"max_position_embeddings": 130, "type_vocab_size": 1},
    "camembert": {"max_position_embeddings": 130, "type_vocab_size": 1},
    "electra": {"max_position_embeddings": 128, "embedding_size": 24},
    "distilbert": {
        "dim": 48,
        "hidden_dim": 96,
        "n_layers": 3,
        "n_heads": 6,
        "max_position_embeddings": 128,
        "seq_classif_dropout": 0.0,
    },
    # windows on both sides in two of three layers, and rotated positions
    "modernbert": {"max_position_embeddings": 256, "local_attention": 16, "global_attn_every_n_layers": 3},
    "nomic_bert": {"max_position_embeddings": 256, "head_dim": 8},
    "gte": {"max_position_embeddings": 256, "type_vocab_size": 2},
    "eurobert": {"max_position_embeddings": 256, "num_key_value_heads": 2, "head_dim": 8},
}


def save_encoder(family: str, folder: Path, *, ranks: bool = False, **changes: Any) -> PreTrainedModel:
    """Return a random encoder, saved to a folder; biases and norms are not at their neutral values.

    ranks: True: it is a classifier with one label.
    """
    torch.manual_seed(len(family))
    labels = {"num_labels": 1} if ranks else {}
    config = AutoConfig.for_model(family, **(SIZES | ENCODERS[family] | labels | changes))
    kind = AutoModelForSequenceClassification if ranks else AutoModel
    return shake_weights(kind.from_config(config), folder)


def save_decoder(folder: Path, kind: str, **changes: Any) -> PreTrainedModel:
    """Return a random Qwen3: `embed` without a head, `classifier` with one label, or `tokens` with a head of tokens."""
    torch.manual_seed(len(kind))
    sizes = SIZES | {"num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128, "num_labels": 1}
    config = AutoConfig.for_model("qwen3", **(sizes | changes))
    classes = {"embed": AutoModel, "classifier": AutoModelForSequenceClassification, "tokens": AutoModelForCausalLM}
    return shake_weights(classes[kind].from_config(config), folder)


def shake_weights(model: PreTrainedModel, folder: Path) -> PreTrainedModel:
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    model.eval().save_pretrained(folder)
    return model


def write_modules(
    folder: Path,
    *,
    pooling: dict[str, Any] | None = None,
    normalize: bool = False,
    tokens: tuple[int, int | None] | None = None,
    prompts: dict[str, str] | None = None,
    default_prompt: str | None = None,
    max_seq_length: int | None = None,
) -> None:
    """Write the files of sentence-transformers beside a model.

    pooling: the config of the pooling module; None: there is no such file. normalize: True: a module gives embeddings
    unit length. tokens: the tokens that mean relevant and not relevant. prompts, default_prompt: the texts before
    texts, and the one that is used where none is named. max_seq_length: the most tokens of a text. A setting that is
    None is left out.
    """
    base = "sentence_transformers"
    modules = [{"idx": 0, "name": "0", "path": "", "type": f"{base}.models.Transformer"}]
    if pooling is not None:
        modules.append({"idx": 1, "name": "1", "path": "1_Pooling", "type": f"{base}.models.Pooling"})
        _write(folder / "1_Pooling" / "config.json", pooling)
    if normalize:
        modules.append({"idx": 2, "name": "2", "path": "2_Normalize", "type": f"{base}.models.Normalize"})
    if tokens is not None:
        kind = f"{base}.cross_encoder.modules.logit_score.LogitScore"
        modules.append({"idx": 1, "name": "1", "path": "1_LogitScore", "type": kind})
        _write(folder / "1_LogitScore" / "config.json", {"true_token_id": tokens[0], "false_token_id": tokens[1]})
    _write(folder / "modules.json", modules)
    _write(
        folder / "config_sentence_transformers.json",
        {"prompts": prompts or {}, "default_prompt_name": default_prompt, "similarity_fn_name": "cosine"},
    )
    if max_seq_length is not None:
        _write(folder / "sentence_bert_config.json", {"max_seq_length": max_seq_length, "do_lower_case": False})


def _write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
