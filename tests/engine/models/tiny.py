"""Tiny random models of every family that the decoder supports, made by transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    Glm4Config,
    Glm4ForCausalLM,
    GlmConfig,
    GlmForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    GraniteMoeConfig,
    GraniteMoeForCausalLM,
    GraniteMoeHybridConfig,
    GraniteMoeHybridForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Ministral3Config,
    Ministral3ForCausalLM,
    MinistralConfig,
    MinistralForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Olmo3Config,
    Olmo3ForCausalLM,
    OlmoeConfig,
    OlmoeForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3_5ForCausalLM,
    Qwen3_5MoeForCausalLM,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

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
LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 5000.0,
    "partial_rotary_factor": 0.5,
    "original_max_position_embeddings": 64,
    "short_factor": [1.0, 1.1, 1.3, 2.0],
    "long_factor": [1.2, 2.0, 4.0, 8.0],
}
GRANITE = {
    "embedding_multiplier": 6.0,
    "attention_multiplier": 0.05,
    "residual_multiplier": 0.3,
    "logits_scaling": 4.0,
}
FOUR_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 32}
EIGHT_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32}
WITH_EXPERTS: dict[str, tuple[type[Any], type[Any], dict[str, Any]]] = {
    "qwen3-moe": (Qwen3MoeConfig, Qwen3MoeForCausalLM, EIGHT_EXPERTS | {"head_dim": 16, "norm_topk_prob": True}),
    "qwen3-moe-unnormalized": (
        Qwen3MoeConfig,
        Qwen3MoeForCausalLM,
        EIGHT_EXPERTS | {"head_dim": 16, "use_sliding_window": True, "sliding_window": 20},
    ),
    "mixtral": (MixtralConfig, MixtralForCausalLM, FOUR_EXPERTS),
    "mixtral-window": (MixtralConfig, MixtralForCausalLM, FOUR_EXPERTS | {"sliding_window": 20}),
    "gpt-oss": (GptOssConfig, GptOssForCausalLM, FOUR_EXPERTS | {"head_dim": 16, "sliding_window": 20}),
    "granite-moe": (
        GraniteMoeConfig,
        GraniteMoeForCausalLM,
        FOUR_EXPERTS
        | {"embedding_multiplier": 6.0, "attention_multiplier": 0.05}
        | {"residual_multiplier": 0.3, "logits_scaling": 4.0},
    ),
    "olmoe": (OlmoeConfig, OlmoeForCausalLM, {"num_experts": 6, "num_experts_per_tok": 4, "intermediate_size": 32}),
}
MAMBA = GRANITE | {
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "num_local_experts": 0,
    "shared_intermediate_size": 80,
    "mamba_n_heads": 8,
    "mamba_n_groups": 2,
    "mamba_d_state": 8,
    "num_key_value_heads": 6,
}
# With larger weights transformers' own float32 is further from float64 than a tenth of a thousandth.
DELTA_RULE = {
    "initializer_range": 0.08,
    "head_dim": 16,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
# Of a text, the positions of all three kinds are the same.
MROPE = {
    "rope_type": "default",
    "rope_theta": 5000.0,
    "partial_rotary_factor": 0.5,
    "mrope_section": [2, 1, 1],
    "mrope_interleaved": True,
}
HYBRIDS: dict[str, tuple[type[Any], type[Any], dict[str, Any]]] = {
    "qwen3.5": (Qwen3_5TextConfig, Qwen3_5ForCausalLM, DELTA_RULE),
    "qwen3.5-biases": (
        Qwen3_5TextConfig,
        Qwen3_5ForCausalLM,
        DELTA_RULE
        | {"attention_bias": True, "tie_word_embeddings": True, "linear_conv_kernel_dim": 2}
        | {"linear_num_value_heads": 2, "rope_parameters": MROPE},
    ),
    "qwen3.5-moe": (
        Qwen3_5MoeTextConfig,
        Qwen3_5MoeForCausalLM,
        DELTA_RULE | EIGHT_EXPERTS | {"shared_expert_intermediate_size": 24},
    ),
    "qwen3-next": (
        Qwen3NextConfig,
        Qwen3NextForCausalLM,
        DELTA_RULE | EIGHT_EXPERTS | {"shared_expert_intermediate_size": 24},
    ),
    "granite-hybrid": (GraniteMoeHybridConfig, GraniteMoeHybridForCausalLM, MAMBA),
    "granite-hybrid-biases": (
        GraniteMoeHybridConfig,
        GraniteMoeHybridForCausalLM,
        MAMBA
        | {"mamba_proj_bias": True, "mamba_conv_bias": False, "mamba_n_groups": 1, "attention_bias": True}
        | {"position_embedding_type": "rope", "tie_word_embeddings": True},
    ),
    "granite-hybrid-moe": (GraniteMoeHybridConfig, GraniteMoeHybridForCausalLM, MAMBA | FOUR_EXPERTS),
    "granite-hybrid-dense": (
        GraniteMoeHybridConfig,
        GraniteMoeHybridForCausalLM,
        MAMBA | {"position_embedding_type": "rope", "layer_types": ["full_attention"] * 3},
    ),
}
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
    "llama-two-heads": (
        LlamaConfig,
        LlamaForCausalLM,
        {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16},
    ),
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
    "qwen2-windows-in-some-layers": (
        Qwen2Config,
        Qwen2ForCausalLM,
        {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1},
    ),
    "smollm3": (SmolLM3Config, SmolLM3ForCausalLM, {"no_rope_layer_interval": 2, "tie_word_embeddings": True}),
    "smollm3-windows": (
        SmolLM3Config,
        SmolLM3ForCausalLM,
        {"no_rope_layers": [1, 0, 1], "use_sliding_window": True, "sliding_window": 20, "attention_bias": True},
    ),
    "gemma3": (
        Gemma3TextConfig,
        Gemma3ForCausalLM,
        {
            "head_dim": 16,
            "sliding_window": 24,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            "query_pre_attn_scalar": 11,
        },
    ),
    "phi3": (Phi3Config, Phi3ForCausalLM, {"sliding_window": None}),
    "phi3-window": (Phi3Config, Phi3ForCausalLM, {"sliding_window": 20}),
    "phi3-partial": (
        Phi3Config,
        Phi3ForCausalLM,
        {
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 0.75},
            "tie_word_embeddings": True,
        },
    ),
    "phi3-longrope": (
        Phi3Config,
        Phi3ForCausalLM,
        {
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "original_max_position_embeddings": 64,
            "rope_parameters": LONG_ROPE,
        },
    ),
    "gemma2": (
        Gemma2Config,
        Gemma2ForCausalLM,
        {
            "head_dim": 16,
            "sliding_window": 24,
            "query_pre_attn_scalar": 11,
            "attn_logit_softcapping": 3.0,
            "final_logit_softcapping": 5.0,
        },
    ),
    "olmo2": (Olmo2Config, Olmo2ForCausalLM, {}),
    "olmo2-biases": (Olmo2Config, Olmo2ForCausalLM, {"attention_bias": True, "tie_word_embeddings": True}),
    "olmo3": (
        Olmo3Config,
        Olmo3ForCausalLM,
        {
            "sliding_window": 24,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {
                "full_attention": YARN_ROPE,
                "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
            },
        },
    ),
    "ministral": (
        MinistralConfig,
        MinistralForCausalLM,
        {
            "head_dim": 16,
            "sliding_window": 20,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
        },
    ),
    "ministral3": (
        Ministral3Config,
        Ministral3ForCausalLM,
        {
            "head_dim": 16,
            "rope_parameters": YARN_ROPE
            | {
                "original_max_position_embeddings": 32,
                "llama_4_scaling_beta": 0.3,
                "mscale": 1.0,
                "mscale_all_dim": 0.8,
            },
        },
    ),
    "glm": (GlmConfig, GlmForCausalLM, {"head_dim": 16}),
    "glm4": (Glm4Config, Glm4ForCausalLM, {"head_dim": 16, "attention_bias": True}),
    "granite": (GraniteConfig, GraniteForCausalLM, GRANITE | {"tie_word_embeddings": True}),
    "granite-biases": (GraniteConfig, GraniteForCausalLM, GRANITE | {"attention_bias": True}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 16}),
    "qwen3-yarn-untruncated": (
        Qwen3Config,
        Qwen3ForCausalLM,
        {"head_dim": 16, "rope_parameters": YARN_ROPE | {"truncate": False, "attention_factor": 1.3}},
    ),
    **WITH_EXPERTS,
    **HYBRIDS,
}


def save_tiny(name: str, folder: Path, sizes: dict[str, Any] | None = None) -> PreTrainedModel:
    """Save a random model of a family, and return it, with biases and norms that are not their neutral initial values.

    sizes: sizes of the config in place of the tiny ones; None: the tiny ones.
    """
    config_class, model_class, changes = FAMILIES[name]
    torch.manual_seed(len(name))
    model: PreTrainedModel = model_class(config_class(**(TINY | changes | (sizes or {})))).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder)
    return model
