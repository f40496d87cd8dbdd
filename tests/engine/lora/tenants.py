"""A tiny base model with adapters of every kind that is supported, and peft's models of the same."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

from adapters.store import AdapterStore
from tests.engine.models.tiny import save_tiny

LORAS = {
    "attention-r4": LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"]),
    "mlp-r7": LoraConfig(r=7, lora_alpha=3, target_modules=["gate_proj", "up_proj", "down_proj"]),
    "all-rslora-r16": LoraConfig(r=16, lora_alpha=4, use_rslora=True, target_modules="all-linear"),
    "patterns": LoraConfig(
        r=2,
        lora_alpha=2,
        target_modules=["q_proj", "v_proj", "down_proj"],
        rank_pattern={"v_proj": 5, "layers.1.self_attn.q_proj": 3},
        alpha_pattern={"down_proj": 9},
    ),
    "one-layer": LoraConfig(r=3, lora_alpha=6, target_modules=["o_proj", "up_proj"], layers_to_transform=[1]),
}


class Tenants:
    """A tiny base model, a store with adapters of it, and peft's model of each adapter."""

    def __init__(self, root: Path, family: str = "llama", fused: Mapping[str, str] | None = None) -> None:
        """Create the models and adapters. fused: the fused module that the family has in place of projections."""
        self.model_dir = root / "model"
        self.store_dir = root / "store"
        self.base = save_tiny(family, self.model_dir)
        self.digests = {"": ""}
        self.models: dict[str, torch.nn.Module] = {"": self.base}
        store = AdapterStore(self.store_dir)
        for name, plain in LORAS.items():
            lora = _with_modules(plain, fused or {})
            model = get_peft_model(AutoModelForCausalLM.from_pretrained(self.model_dir), lora)
            torch.manual_seed(len(name))
            with torch.no_grad():
                for parameter_name, parameter in model.named_parameters():
                    if "lora_" in parameter_name:
                        parameter.normal_(0, 0.1)
            model.save_pretrained(root / name)
            self.digests[name] = store.add(root / name)
            base = AutoModelForCausalLM.from_pretrained(self.model_dir)
            self.models[name] = PeftModel.from_pretrained(base, root / name).eval()


def _with_modules(lora: LoraConfig, fused: Mapping[str, str]) -> LoraConfig:
    """Return a configuration that names the modules that a family has in place of projections."""

    def named(names: str) -> str:
        for projection, module in fused.items():
            names = re.sub(rf"\b{projection}\b", module, names)
        return names

    changes = {
        "target_modules": lora.target_modules
        if isinstance(lora.target_modules, str)
        else sorted({named(module) for module in lora.target_modules or ()}),
        # The first pattern that matches counts, and PEFT saves them in the order of their names.
        "rank_pattern": dict(sorted((named(key), rank) for key, rank in lora.rank_pattern.items())),
        "alpha_pattern": {named(key): alpha for key, alpha in lora.alpha_pattern.items()},
    }
    return LoraConfig(**(lora.to_dict() | changes))
