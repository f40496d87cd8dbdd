"""Loads a model of the installed transformers from a folder: weights in safetensors, and no code of the folder.

A folder whose config names code of its own (`auto_map`) is computed by the class that transformers has for its
`model_type`, or refused.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.utils import logging as transformers_logging

from engine.config import ModelConfig, UnsupportedModel
from engine.config.general import tensors_of
from engine.models.general.interface import STEPS


class ModelKind(NamedTuple):
    """A kind of models: the class that makes them, and tensors that their files may lack, or have without use."""

    auto_class: Any
    """The class of transformers that makes models of this kind, such as `AutoModelForCausalLM`."""
    optional_weights: tuple[str, ...] = ()
    """Beginnings of the names of weights that may be missing, since nothing is computed by them."""
    ignored_tensors: tuple[str, ...] = ()
    """Beginnings of the names of tensors that files may have besides, such as a head for training."""


DECODERS = ModelKind(AutoModelForCausalLM)
MOST_BUFFERS = 1 << 26
"""Numbers beside weights, such as masks of all positions, that a small model may have."""
SHOWN = 5
"""The most names that a refusal lists."""


def read_config(folder: Path, family: str, kind: ModelKind = DECODERS) -> PreTrainedConfig:
    """Return transformers' configuration of a model of text, of this model_type, that it has a class for.

    Raises UnsupportedModel: when the installed transformers has none, or the class attends in a way of its own.
    """
    if (folder / "adapter_config.json").exists():
        raise UnsupportedModel(f"{folder} has adapter_config.json: an adapter is no base model")
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # whatever transformers raises for a config that it cannot read
        raise UnsupportedModel(
            f"config.json: model_type is {family!r}; transformers {transformers.__version__} says: {_first_line(error)}"
        ) from None
    model_class = kind.auto_class._model_mapping.get(type(config), None)
    if model_class is None:
        raise UnsupportedModel(
            f"config.json: model_type is {family!r}, for which transformers {transformers.__version__} has no class "
            f"of {kind.auto_class.__name__} (code that comes with a model is never run)"
        )
    model_class = model_class[0] if isinstance(model_class, tuple) else model_class
    if not hasattr(sys.modules[model_class.__module__], "ALL_ATTENTION_FUNCTIONS"):
        raise UnsupportedModel(
            f"config.json: model_type is {family!r}: {model_class.__name__} of transformers {transformers.__version__} "
            "does not attend through its attention interface"
        )
    return config


def load_model(
    folder: Path, config: PreTrainedConfig, dtype: torch.dtype, device: torch.device, kind: ModelKind = DECODERS
) -> PreTrainedModel:
    """Return the model with the weights of a folder, for steps over a cache.

    Raises UnsupportedModel: when a tensor is missing, misshapen or unknown.
    """
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()  # what its reports tell is looked at below
    _check_memory(folder, config, kind)
    # Experts one after the other on a CPU: other ways copy the weights of an expert for each token.
    experts: dict[str, Any] = {"experts_implementation": "eager"} if device.type == "cpu" else {}
    try:
        model, found = kind.auto_class.from_pretrained(
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
        raise UnsupportedModel(f"{folder}: transformers {transformers.__version__}: {_first_line(error)}") from None
    _check_found(found, kind)
    _check_finite(model, kind)
    model = model.to(device).eval()
    for name, value in (("use_cache", False), ("output_router_logits", False), ("output_attentions", False)):
        if getattr(model.config, name, value) != value:
            setattr(model.config, name, value)
    return model


def _check_memory(folder: Path, config: PreTrainedConfig, kind: ModelKind) -> None:
    """Check that a config asks for no more memory than the files of weights announce.

    The check itself takes no memory: the model is made without numbers.

    Raises UnsupportedModel: when the config asks for more, or for sizes that do not go together.
    """
    try:
        with torch.device("meta"):
            model = kind.auto_class.from_config(config)
    except Exception as error:  # whatever a model's code raises for sizes that do not go together
        raise UnsupportedModel(
            f"config.json: transformers {transformers.__version__} makes no model of it: {_first_line(error)}"
        ) from None
    wanted = [(name, each) for name, each in model.named_parameters() if not name.startswith(kind.optional_weights)]
    asked = sum(parameter.numel() for _, parameter in wanted)
    tensors = dict(tensors_of(folder))
    stored = sum(map(math.prod, tensors.values()))
    buffers = sum(buffer.numel() for buffer in model.buffers())
    if asked > stored:
        lacking = [name for name, _ in wanted if name not in tensors and "experts" not in name]
        which = f": the checkpoint lacks {', '.join(lacking[:SHOWN])}" if lacking else ""
        raise UnsupportedModel(f"config.json asks for {asked} weights, but the files have {stored}{which}")
    if buffers > max(stored, MOST_BUFFERS):
        raise UnsupportedModel(f"config.json asks for {buffers} numbers beside the {stored} weights of the files")


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


def _check_found(found: dict[str, Any], kind: ModelKind) -> None:
    missing = sorted(name for name in found["missing_keys"] if not name.startswith(kind.optional_weights))
    unknown = sorted(name for name in found["unexpected_keys"] if not name.startswith(kind.ignored_tensors))
    mismatched = sorted(str(each[0]) for each in found["mismatched_keys"])
    if missing:
        raise UnsupportedModel(f"the checkpoint lacks {', '.join(missing[:SHOWN])}")
    if mismatched:
        raise UnsupportedModel(f"the checkpoint has other shapes than the config asks for: {', '.join(mismatched[:5])}")
    if unknown:
        raise UnsupportedModel(f"the checkpoint has tensors the config does not explain: {', '.join(unknown[:SHOWN])}")
    if found.get("error_msgs"):
        raise UnsupportedModel(f"the checkpoint cannot be read: {_first_line(found['error_msgs'][0])}")


def _check_finite(model: PreTrainedModel, kind: ModelKind) -> None:
    """Check that all weights are finite numbers.

    Raises UnsupportedModel: when a weight has other values; the error names the weight.
    """
    for name, parameter in model.named_parameters():
        if name.startswith(kind.optional_weights) or not parameter.numel():
            continue
        if not bool(torch.stack(parameter.aminmax()).isfinite().all()):
            raise UnsupportedModel(f"the checkpoint's {name} has numbers that are not finite")


def _first_line(error: object) -> str:
    """Return the first line of an error, shortened if it would fill a screen."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:300]
