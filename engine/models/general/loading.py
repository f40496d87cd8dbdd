"""From a folder to a model of the installed transformers, in memory: weights of safetensors, and no code of a folder.

A folder whose config names code of its own (`auto_map`) is computed by the class that transformers has for its
`model_type`, or refused.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.utils import logging as transformers_logging

from engine.config import ModelConfig, UnsupportedModel
from engine.models.general.interface import STEPS

SHOWN = 5
"""The most names that a refusal lists."""


def read_config(folder: Path, kind: str) -> PreTrainedConfig:
    """Return transformers' configuration of a model of text, of this model_type, that it has a class for.

    Raises UnsupportedModel: where the installed transformers has none, or the class attends in a way of its own.
    """
    if (folder / "adapter_config.json").exists():
        raise UnsupportedModel(f"{folder} has adapter_config.json: an adapter is no base model")
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # whatever transformers raises for a config that it cannot read
        raise UnsupportedModel(
            f"config.json: model_type is {kind!r}; transformers {transformers.__version__} says: {_brief(error)}"
        ) from None
    model_class = AutoModelForCausalLM._model_mapping.get(type(config), None)
    if model_class is None:
        raise UnsupportedModel(
            f"config.json: model_type is {kind!r}, for which transformers {transformers.__version__} has no decoder of "
            "text (code that comes with a model is never run)"
        )
    model_class = model_class[0] if isinstance(model_class, tuple) else model_class
    if not hasattr(sys.modules[model_class.__module__], "ALL_ATTENTION_FUNCTIONS"):
        raise UnsupportedModel(
            f"config.json: model_type is {kind!r}: {model_class.__name__} of transformers {transformers.__version__} "
            "does not attend through its attention interface"
        )
    return config


def load_model(folder: Path, config: PreTrainedConfig, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """Return the model with the weights of a folder, for steps over a cache.

    Raises UnsupportedModel: when a tensor is missing, misshapen or unknown.
    """
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()  # what its reports tell is looked at below
    # Experts one after the other on a CPU: other ways copy the weights of an expert for each token.
    experts: dict[str, Any] = {"experts_implementation": "eager"} if device.type == "cpu" else {}
    try:
        model, found = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            attn_implementation=STEPS,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # so that they are told by name
            **experts,
        )
    except Exception as error:  # whatever transformers raises for weights that it cannot read
        raise UnsupportedModel(f"{folder}: transformers {transformers.__version__}: {_brief(error)}") from None
    _check_found(found)
    model = model.to(device).eval()
    for name, value in (("use_cache", False), ("output_router_logits", False), ("output_attentions", False)):
        if getattr(model.config, name, value) != value:
            setattr(model.config, name, value)
    return model


def check_sizes(config: PreTrainedConfig, model: ModelConfig) -> None:
    """Check that transformers reads the same sizes from the config as gateways do.

    Raises UnsupportedModel: for a size that the config leaves to transformers, or spells in another way.
    """
    read = {
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden_size,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_heads,
    }
    for key, value in read.items():
        theirs = getattr(config, key, value)
        if theirs != value:
            raise UnsupportedModel(f"config.json: {key} is {value}, but transformers computes with {theirs}")


def _check_found(found: dict[str, Any]) -> None:
    missing, unknown = sorted(found["missing_keys"]), sorted(found["unexpected_keys"])
    mismatched = sorted(str(each[0]) for each in found["mismatched_keys"])
    if missing:
        raise UnsupportedModel(f"the checkpoint lacks {', '.join(missing[:SHOWN])}")
    if mismatched:
        raise UnsupportedModel(f"the checkpoint has other shapes than the config asks for: {', '.join(mismatched[:5])}")
    if unknown:
        raise UnsupportedModel(f"the checkpoint has tensors the config does not explain: {', '.join(unknown[:SHOWN])}")
    if found.get("error_msgs"):
        raise UnsupportedModel(f"the checkpoint cannot be read: {_brief(found['error_msgs'][0])}")


def _brief(error: object) -> str:
    """Return the first line of an error, without what would fill a screen."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:300]
