"""Adapters of random weights on all projections, in the store that a benchmark's engine loads from."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file

from adapters.store import AdapterStore
from engine.config import PROJECTIONS, EngineConfig, ModelConfig, load_model_config


def random_adapters(config: EngineConfig, count: int, rank: int) -> list[str]:
    """Return the digests of `count` adapters of this rank, now in the config's store.

    The k-th is the same in every run.
    """
    model = load_model_config(config.model_dir)
    store = AdapterStore(Path(config.adapter_store))
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": list(PROJECTIONS)}
    digests = []
    for number in range(count):
        with tempfile.TemporaryDirectory(prefix="lorikeet-bench-") as name:
            folder = Path(name)
            save_file(_random_weights(model, rank, number), folder / "adapter_model.safetensors")
            (folder / "adapter_config.json").write_text(json.dumps(settings))
            digests.append(store.add(folder))
    return digests


def _random_weights(model: ModelConfig, rank: int, seed: int) -> dict[str, torch.Tensor]:
    """Return A [rank, in] and B [out, rank] of every projection, bf16, by PEFT's names.

    The weights are small enough to change few tokens.
    """
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for layer in range(model.num_layers):
        for projection in PROJECTIONS:
            width, height = model.projection_shape(projection)
            block = "mlp" if projection in ("gate_proj", "up_proj", "down_proj") else "self_attn"
            name = f"base_model.model.model.layers.{layer}.{block}.{projection}"
            for matrix, shape in (("lora_A", (rank, width)), ("lora_B", (height, rank))):
                weights[f"{name}.{matrix}.weight"] = (torch.randn(shape, generator=generator) * 0.01).bfloat16()
    return weights
