"""Adapters that peft has trained a little, of every kind that is promised, beside peft's models of them."""

from __future__ import annotations

from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import LlamaForCausalLM

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
KINDS = {
    "r4": LoraConfig(r=4, lora_alpha=8, target_modules="all-linear"),
    "r16": LoraConfig(r=16, lora_alpha=16, target_modules="all-linear"),
    "r64": LoraConfig(r=64, lora_alpha=32, target_modules="all-linear"),
    "rslora": LoraConfig(r=16, lora_alpha=4, use_rslora=True, target_modules="all-linear"),
    "rank-pattern": LoraConfig(
        r=4,
        lora_alpha=8,
        target_modules=["q_proj", "v_proj", "down_proj"],
        rank_pattern={"v_proj": 16, r".*\.1\..*q_proj": 3},
    ),
    "rank-and-alpha-pattern": LoraConfig(
        r=4,
        lora_alpha=8,
        target_modules="all-linear",
        rank_pattern={"down_proj": 7},
        alpha_pattern={"down_proj": 3, "layers.0.self_attn.q_proj": 20},
    ),
    "rslora-rank-pattern": LoraConfig(
        r=4, lora_alpha=2, use_rslora=True, target_modules=ATTENTION, rank_pattern={"o_proj": 9}
    ),
    "attention": LoraConfig(r=8, lora_alpha=16, target_modules=ATTENTION),
    "mlp": LoraConfig(r=8, lora_alpha=16, target_modules=["gate_proj", "up_proj", "down_proj"]),
    "one-projection": LoraConfig(r=8, lora_alpha=16, target_modules=["k_proj"]),
    "one-layer": LoraConfig(r=8, lora_alpha=16, target_modules=ATTENTION, layers_to_transform=[1]),
}
NUM_STEPS = 4
LEARNING_RATE = 0.05


def train(model_dir: Path, kind: str, folder: Path) -> PeftModel:
    """Train an adapter for a few steps and save it to a folder; return the model that peft loads from the folder."""
    torch.manual_seed(len(kind))
    model = get_peft_model(LlamaForCausalLM.from_pretrained(model_dir), KINDS[kind])
    optimizer = torch.optim.AdamW((each for each in model.parameters() if each.requires_grad), lr=LEARNING_RATE)
    tokens = torch.randint(0, model.config.vocab_size, (4, 24))
    for _ in range(NUM_STEPS):
        optimizer.zero_grad()
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
    model.save_pretrained(folder)
    return PeftModel.from_pretrained(LlamaForCausalLM.from_pretrained(model_dir), folder).eval()
