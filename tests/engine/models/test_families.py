"""The decoder computes what transformers computes, for every family it claims, in fp32 within 1e-4."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from engine.config import UnsupportedModel, load_model_config
from tests.engine.harness import engine_config, greedy, run_engine
from tests.engine.reference import Claim, assert_greedy_follows

TINY = {
    "vocab_size": 199,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "eos_token_id": None,
    "bos_token_id": None,
    "pad_token_id": None,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 5000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN_ROPE = {"rope_type": "yarn", "rope_theta": 5000.0, "factor": 8.0, "original_max_position_embeddings": 64}
FAMILIES: dict[str, tuple[type[Any], type[Any], dict[str, Any]]] = {
    "llama": (LlamaConfig, LlamaForCausalLM, {"tie_word_embeddings": True}),
    "llama-biases": (LlamaConfig, LlamaForCausalLM, {"attention_bias": True}),
    "llama-linear-rope": (
        LlamaConfig,
        LlamaForCausalLM,
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 9999.0, "factor": 4.0}},
    ),
    "llama3-rope": (LlamaConfig, LlamaForCausalLM, {"rope_parameters": LLAMA3_ROPE}),
    "llama-head-dim": (LlamaConfig, LlamaForCausalLM, {"head_dim": 16}),
    "mistral-window": (MistralConfig, MistralForCausalLM, {"sliding_window": 24}),
    "mistral": (MistralConfig, MistralForCausalLM, {"sliding_window": None}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {"tie_word_embeddings": True}),
    "qwen2-yarn": (Qwen2Config, Qwen2ForCausalLM, {"rope_parameters": YARN_ROPE}),
    "qwen2-windows-off": (
        Qwen2Config,
        Qwen2ForCausalLM,
        {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 3},
    ),
    "qwen2-windows-everywhere": (
        Qwen2Config,
        Qwen2ForCausalLM,
        {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 0},
    ),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 16}),
    "qwen3-yarn-untruncated": (
        Qwen3Config,
        Qwen3ForCausalLM,
        {"head_dim": 16, "rope_parameters": YARN_ROPE | {"truncate": False, "attention_factor": 1.3}},
    ),
}


def save_tiny(name: str, folder: Path) -> PreTrainedModel:
    """A random model of a family, with biases and norms that are not their neutral initial values."""
    config_class, model_class, changes = FAMILIES[name]
    torch.manual_seed(len(name))
    model: PreTrainedModel = model_class(config_class(**(TINY | changes))).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("name", FAMILIES)
def test_family_equals_transformers(name: str, tmp_path: Path) -> None:
    model = save_tiny(name, tmp_path / "model")
    prompts = [torch.randint(0, 199, (length,)).tolist() for length in (1, 7, 40, 133)]
    config = engine_config(tmp_path / "model", tmp_path / "store", max_batched_tokens=32)
    answers = run_engine(config, [greedy(f"r{i}", prompt, 24) for i, prompt in enumerate(prompts)])
    for i, prompt in enumerate(prompts):
        answer = answers[f"r{i}"]
        assert_greedy_follows(model, [Claim(prompt, answer.token_ids, answer.logprobs)], tolerance=1e-4)
        assert answer.final.finish_reason == "length"


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"model_type": "gpt2"}, "model_type"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "rope type"),
        ({"model_type": "qwen2", "sliding_window": 8, "use_sliding_window": True, "max_window_layers": 1}, "mixes"),
        ({"model_type": "mistral", "sliding_window": 8, "layer_types": ["full_attention", "x"]}, "mixes"),
    ],
)
def test_what_the_decoder_would_compute_wrongly_is_refused_by_key(
    change: dict[str, object], key: str, tmp_path: Path
) -> None:
    import json

    raw = LlamaConfig(**TINY).to_dict() | change
    (tmp_path / "config.json").write_text(json.dumps(raw))
    with pytest.raises(UnsupportedModel, match=key):
        load_model_config(tmp_path)


def test_a_checkpoint_that_lacks_a_tensor_is_refused_by_name(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    save_tiny("qwen2", tmp_path / "model")
    path = tmp_path / "model" / "model.safetensors"
    tensors = load_file(path)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, path)
    with pytest.raises(UnsupportedModel, match=r"model\.layers\.1\.mlp\.up_proj\.weight"):
        run_engine(engine_config(tmp_path / "model", tmp_path / "store"), [])
