"""Adapters of random weights on all projections, and on all experts, in the store of a benchmark's engine."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file

from adapters.store import AdapterStore
from engine.config import EngineConfig, ModelConfig, load_model_config

EXPERTS = "mlp.experts"
"""The module of a layer's experts in transformers 5."""


def random_adapters(config: EngineConfig, count: int, rank: int) -> list[str]:
    """Return the digests of `count` adapters of this rank, now in the config's store.

    The k-th adapter is the same in every run.
    """
    model = load_model_config(config.model_dir)
    store = AdapterStore(Path(config.adapter_store))
    settings: dict[str, object] = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": rank,
        "target_modules": list(model.projection_shapes()),
    }
    if model.experts is not None:
        settings["target_parameters"] = [f"{EXPERTS}.gate_up_proj", f"{EXPERTS}.down_proj"]
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
        for name, ranks, width, height in _modules(model, rank):
            for matrix, shape in (("lora_A", (ranks, width)), ("lora_B", (height, ranks))):
                tensor = f"base_model.model.model.layers.{layer}.{name}.{matrix}.weight"
                weights[tensor] = (torch.randn(shape, generator=generator) * 0.01).bfloat16()
    return weights


def _modules(model: ModelConfig, rank: int) -> Iterator[tuple[str, int, int, int]]:
    """Yield the modules of a layer by PEFT's names: the name, ranks, inputs and outputs."""
    for projection, (width, height) in model.projection_shapes().items():
        block = "mlp" if projection in ("gate_proj", "up_proj", "down_proj") else "self_attn"
        yield f"{block}.{projection}", rank, width, height
    if model.experts is not None:
        ranks = rank * model.experts.number
        yield f"{EXPERTS}.base_layer", ranks, model.hidden_size, 2 * model.intermediate_size
        yield EXPERTS, ranks, model.intermediate_size, model.hidden_size
