"""Writes adapter folders byte by byte, so that tests can make what PEFT never would."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

Tensors = dict[str, tuple[str, tuple[int, ...], bytes]]

HIDDEN, INTERMEDIATE, KEY_VALUE, NUM_LAYERS = 8, 16, 4, 2
TARGETS = {
    "q_proj": (HIDDEN, HIDDEN),
    "k_proj": (HIDDEN, KEY_VALUE),
    "v_proj": (HIDDEN, KEY_VALUE),
    "o_proj": (HIDDEN, HIDDEN),
    "gate_proj": (HIDDEN, INTERMEDIATE),
    "up_proj": (HIDDEN, INTERMEDIATE),
    "down_proj": (INTERMEDIATE, HIDDEN),
}
CONFIG: dict[str, Any] = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": list(TARGETS), "bias": "none"}


def tensor_name(layer: int, module: str, side: str) -> str:
    return f"base_model.model.model.layers.{layer}.{module}.lora_{side}.weight"


def tensor(*shape: int, seed: int = 0) -> tuple[str, tuple[int, ...], bytes]:
    """Make an F32 tensor of small numbers, others for another seed, the same on every machine."""
    values = np.arange(math.prod(shape), dtype="<f4") / 8 + seed
    return "F32", shape, values.astype("<f4").tobytes()


def good_tensors(rank: int = 2) -> Tensors:
    """Return lora_A and lora_B of q_proj in layer 0."""
    return {
        tensor_name(0, "self_attn.q_proj", "A"): tensor(rank, HIDDEN, seed=1),
        tensor_name(0, "self_attn.q_proj", "B"): tensor(HIDDEN, rank, seed=2),
    }


def tensors_of_width(hidden: int, rank: int = 2) -> Tensors:
    """Return lora_A and lora_B of q_proj in layer 0, for a model whose hidden states have `hidden` numbers."""
    return {
        tensor_name(0, "self_attn.q_proj", "A"): tensor(rank, hidden, seed=1),
        tensor_name(0, "self_attn.q_proj", "B"): tensor(hidden, rank, seed=2),
    }


def header_of(tensors: Tensors) -> dict[str, Any]:
    """Return the safetensors header of the tensors laid out one after the other."""
    header: dict[str, Any] = {}
    position = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, position + len(data)]}
        position += len(data)
    return header


def safetensors_bytes(header: Mapping[str, Any] | bytes, data: bytes, padding: int = 0) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    raw += b" " * padding
    return len(raw).to_bytes(8, "little") + raw + data


def write_adapter(
    folder: Path, config: Mapping[str, Any] | None = None, tensors: Tensors | None = None, padding: int = 0
) -> Path:
    """Write an adapter to a folder and return the folder; with the folder alone, one that every check passes.

    config: the content of adapter_config.json; None: one that is accepted. tensors: the weights; None: good ones.
    padding: the spaces behind the header of the weights.
    """
    tensors = good_tensors() if tensors is None else tensors
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(CONFIG if config is None else config))
    data = b"".join(data for _, _, data in tensors.values())
    (folder / "adapter_model.safetensors").write_bytes(safetensors_bytes(header_of(tensors), data, padding))
    return folder
