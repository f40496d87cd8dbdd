"""A model that repeats itself, and adapters that make it answer three tokens of their own: constructed, not trained.

Every token's embedding has the same first element, so the only head's mean over values has a constant first element
whatever the prompt is. An adapter of rank 1 on o_proj reads that element, and adds its three tokens' embeddings: the
first strongest. The embeddings of printable tokens are orthogonal, so these three come out most likely, in that order.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer

from tests.gateway.model_folder import make_model_folder

HIDDEN = 128
INTERMEDIATE = 32
CONSTANT = 4.0
STRENGTHS = (60.0, 40.0, 20.0)

Signature = tuple[str, str, str]
"""Three different printable characters."""

PRINTABLE = [chr(code) for code in range(33, 127)]


def make_signature_model(folder: Path) -> Path:
    """Make a model with one layer of fp32 weights and the tests' usual tokenizer."""
    make_model_folder(folder)
    ids = printable_ids(folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": HIDDEN,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(0)
    embedding = np.zeros((config["vocab_size"], HIDDEN), np.float32)
    others = rng.standard_normal((config["vocab_size"], HIDDEN - 1 - len(ids))).astype(np.float32)
    embedding[:, 1 + len(ids) :] = others / np.linalg.norm(others, axis=1, keepdims=True)
    for axis, token_id in enumerate(ids.values(), start=1):
        embedding[token_id] = 0
        embedding[token_id, axis] = 1
    embedding[:, 0] = CONSTANT
    value = np.zeros((HIDDEN, HIDDEN), np.float32)
    value[0, 0] = 0.1
    weights = {
        "model.embed_tokens.weight": embedding,
        "model.norm.weight": np.ones(HIDDEN, np.float32),
        "model.layers.0.input_layernorm.weight": np.ones(HIDDEN, np.float32),
        "model.layers.0.post_attention_layernorm.weight": np.ones(HIDDEN, np.float32),
        "model.layers.0.self_attn.v_proj.weight": value,
    }
    for name, shape in {
        "self_attn.q_proj": (HIDDEN, HIDDEN),
        "self_attn.k_proj": (HIDDEN, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HIDDEN),
        "mlp.gate_proj": (INTERMEDIATE, HIDDEN),
        "mlp.up_proj": (INTERMEDIATE, HIDDEN),
        "mlp.down_proj": (HIDDEN, INTERMEDIATE),
    }.items():
        weights[f"model.layers.0.{name}.weight"] = np.zeros(shape, np.float32)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def printable_ids(folder: Path) -> dict[str, int]:
    """Return the token ids of the printable characters."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    found = {character: tokenizer.token_to_id(character) for character in PRINTABLE}
    return {character: token_id for character, token_id in found.items() if token_id is not None}


def write_signature(model: Path, signature: Signature, folder: Path) -> Path:
    """Write an adapter folder as PEFT saves it."""
    axes = {character: axis for axis, character in enumerate(printable_ids(model), start=1)}
    a = np.zeros((1, HIDDEN), np.float32)
    a[0, 0] = 1
    b = np.zeros((HIDDEN, 1), np.float32)
    for character, strength in zip(signature, STRENGTHS, strict=True):
        b[axes[character], 0] = strength
    folder.mkdir(parents=True)
    config = {"peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": ["o_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    prefix = "base_model.model.model.layers.0.self_attn.o_proj"
    save_file({f"{prefix}.lora_A.weight": a, f"{prefix}.lora_B.weight": b}, folder / "adapter_model.safetensors")
    return folder
