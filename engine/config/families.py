"""The families that the engine's own code computes: for each `model_type` one row, with its differences from Llama.

A row says what transformers' configuration class says: the values of keys that a `config.json` may leave out, the keys
that this family alone has, and what they mean as fields of `ModelConfig`. Knows no file and no tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec

from engine.config.experts import clamp_of, experts_of
from engine.config.hybrids import granite_recurrence, qwen_recurrence
from engine.config.model import ExpertNames, NormNames, UnsupportedModel
from engine.config.rope_keys import ropes_by_kind, scaling_of
from engine.config.values import number, whole_number

Raw = dict[str, Any]
MOST_INNER = 1 << 24
FULL, SLIDING = "full_attention", "sliding_attention"


def _all_full(raw: Raw) -> list[str]:
    return [FULL] * raw["num_hidden_layers"]


def _all_sliding(raw: Raw) -> list[str]:
    return [SLIDING] * raw["num_hidden_layers"]


def _every(period: int, *keys: str) -> Callable[[Raw], list[str]]:
    """Return a function that makes every period-th layer see everything. keys: keys that give another period."""

    def kinds(raw: Raw) -> list[str]:
        key = next((each for each in keys if raw.get(each)), "")
        found = whole_number(raw, key) if key else period
        return [SLIDING if (layer + 1) % found else FULL for layer in range(raw["num_hidden_layers"])]

    return kinds


def _every_other(raw: Raw) -> list[str]:
    return [FULL if layer % 2 else SLIDING for layer in range(raw["num_hidden_layers"])]


def _last_sliding(raw: Raw) -> list[str]:
    """Return the kinds of layers of Qwen, of which the first max_window_layers see everything."""
    num_layers = raw["num_hidden_layers"]
    full = min(max(int(number(raw, "max_window_layers", num_layers)), 0), num_layers)
    return [FULL] * full + [SLIDING] * (num_layers - full)


def _unrotated_sliding(raw: Raw) -> list[str]:
    unrotated = unrotated_layers(raw)
    return [SLIDING if layer in unrotated else FULL for layer in range(raw["num_hidden_layers"])]


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """The differences of the models of one `model_type` from Llama."""

    architecture: str
    """The name of transformers' class."""
    examples: str
    """Models of this family, for people."""
    differences: str = ""
    """The differences between the family and Llama, in words for people."""
    defaults: Raw = {}
    """The values of keys that a config may leave out."""
    kinds: Callable[[Raw], list[str]] = _all_full
    """The function that returns the kind of each layer's attention, where a config has a window and does not say."""
    keys: tuple[str, ...] = ()
    """The keys that `fields` and `kinds` read."""
    fields: Callable[[Raw], Raw] = lambda raw: {}
    """The function that returns fields of `ModelConfig`, beside those that are read alike for all families.

    Raises UnsupportedModel: when a key asks for something that the engine does not compute; the error names the key.
    """
    rotates_partly: bool = False
    """True if a config may have a part of each head rotated."""
    activation: tuple[str, str] = ("hidden_act", "silu")
    """The key of the function of the gate, and the only one that is computed."""
    computes: Callable[[Raw], bool] = lambda raw: True
    """The function that returns False for a config of this family that is left to transformers."""
    wrapper: str = ""
    """The `model_type` of models for text and images whose text model is of this family, and is computed alone."""


def unrotated_layers(raw: Raw) -> tuple[int, ...]:
    """Return the layers that SmolLM3 does not rotate.

    These are the layers at which `no_rope_layers` has a 0, or each `no_rope_layer_interval`-th layer.

    Raises UnsupportedModel: for another list.
    """
    num_layers, listed = raw["num_hidden_layers"], raw.get("no_rope_layers")
    if listed is None:
        interval = whole_number(raw, "no_rope_layer_interval", default=4)
        return tuple(range(interval - 1, num_layers, interval))
    if not isinstance(listed, list) or len(listed) != num_layers or not all(each in (0, 1) for each in listed):
        raise UnsupportedModel(f"config.json: no_rope_layers must list {num_layers} times 0 or 1")
    return tuple(layer for layer, is_rotated in enumerate(listed) if not is_rotated)


def _attention_biases(raw: Raw) -> Raw:
    has_biases = bool(raw.get("attention_bias", False))
    return {"qkv_bias": has_biases, "o_bias": has_biases}


def _granite_fields(raw: Raw) -> Raw:
    divisor = number(raw, "logits_scaling", 1.0)
    if divisor == 0:
        raise UnsupportedModel("config.json: logits_scaling must be a finite number, and not 0")
    factors = ("embedding_multiplier", "attention_multiplier", "residual_multiplier")
    return _attention_biases(raw) | {key: number(raw, key, 1.0) for key in factors} | {"logits_divisor": divisor}


def _smollm3_fields(raw: Raw) -> Raw:
    return _attention_biases(raw) | {"unrotated_layers": unrotated_layers(raw)}


def _gemma_fields(raw: Raw) -> Raw:
    """Return the fields that Gemma 2 and 3 share (Gemma Team, 2024, arXiv 2408.00118; 2025, arXiv 2503.19786)."""
    if raw.get("use_bidirectional_attention"):
        raise UnsupportedModel("config.json: use_bidirectional_attention is not supported")
    return _attention_biases(raw) | {
        "activation": "gelu_tanh",
        "norm_offset": 1.0,
        "norms": NormNames(
            after_attention="post_attention_layernorm",
            before_feed_forward="pre_feedforward_layernorm",
            after_feed_forward="post_feedforward_layernorm",
        ),
        "embedding_multiplier": math.sqrt(raw["hidden_size"]),
        "attention_multiplier": number(raw, "query_pre_attn_scalar", 256, above=0) ** -0.5,
    }


def _gemma2_fields(raw: Raw) -> Raw:
    caps = {"attention_softcap": "attn_logit_softcapping", "logits_softcap": "final_logit_softcapping"}
    return _gemma_fields(raw) | {
        field: 0.0 if raw.get(key) is None else number(raw, key, 0.0, above=0) for field, key in caps.items()
    }


def _gemma3_fields(raw: Raw) -> Raw:
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        if raw.get(key):
            raise UnsupportedModel(f"config.json: {key} is not supported for gemma3_text")
    full, local = ropes_by_kind(raw, number(raw, "rope_local_base_freq", 1e4, above=0))
    return _gemma_fields(raw) | {"qk_norm": True, "rope": full, "window_rope": local}


_OUTPUT_NORMS = NormNames(
    before_attention="",
    after_attention="post_attention_layernorm",
    before_feed_forward="",
    after_feed_forward="post_feedforward_layernorm",
)


def _olmo2_fields(raw: Raw) -> Raw:
    return _attention_biases(raw) | {"whole_qk_norm": True, "norms": _OUTPUT_NORMS}


def _olmo3_fields(raw: Raw) -> Raw:
    full, local = ropes_by_kind(raw, number(raw, "rope_theta", 5e5, above=0))
    return _olmo2_fields(raw) | {"rope": full, "window_rope": local}


def _phi3_fields(raw: Raw) -> Raw:
    return {"fused": ("self_attn.qkv_proj", "mlp.gate_up_proj")}


def _ministral3_fields(raw: Raw) -> Raw:
    return {"query_growth": number(scaling_of(raw), "llama_4_scaling_beta", 0.0)}


def _glm_fields(raw: Raw) -> Raw:
    return {"qkv_bias": bool(raw["attention_bias"]), "fused": ("mlp.gate_up_proj",), "interleaved": True}


def _glm4_fields(raw: Raw) -> Raw:
    norms = NormNames(after_attention="post_self_attn_layernorm", after_feed_forward="post_mlp_layernorm")
    return _glm_fields(raw) | {"norms": norms}


_MIXTRAL_NAMES = ExpertNames(
    router="block_sparse_moe.gate",
    block="block_sparse_moe.experts",
    gate="w1",
    up="w3",
    down="w2",
    gate_up="block_sparse_moe.experts.gate_up_proj",
    downs="block_sparse_moe.experts.down_proj",
)
_GRANITE_NAMES = ExpertNames(
    router="block_sparse_moe.router.layer",
    block="block_sparse_moe.experts",
    gate_up="block_sparse_moe.input_linear.weight",
    downs="block_sparse_moe.output_linear.weight",
)


def _qwen3_moe_fields(raw: Raw) -> Raw:
    count_key = "num_experts" if "num_experts" in raw else "num_local_experts"
    return _attention_biases(raw) | {
        "qk_norm": True,
        "intermediate_size": whole_number(raw, "moe_intermediate_size", MOST_INNER),
        "experts": experts_of(raw, count_key, normalized=bool(raw.get("norm_topk_prob", False))),
    }


def _has_experts_everywhere(raw: Raw) -> bool:
    return raw.get("mlp_only_layers") in (None, []) and raw.get("decoder_sparse_step", 1) == 1


def _mixtral_fields(raw: Raw) -> Raw:
    return {"experts": experts_of(raw, "num_local_experts", normalized=True, names=_MIXTRAL_NAMES)}


def _olmoe_fields(raw: Raw) -> Raw:
    normalized = bool(raw.get("norm_topk_prob", False))
    experts = experts_of(raw, "num_experts", normalized=normalized)
    return _attention_biases(raw) | {"whole_qk_norm": True, "experts": experts}


def _granitemoe_fields(raw: Raw) -> Raw:
    experts = experts_of(raw, "num_local_experts", normalized=True, names=_GRANITE_NAMES)
    return _granite_fields(raw) | {"experts": experts}


def _gpt_oss_fields(raw: Raw) -> Raw:
    experts = experts_of(
        raw,
        "num_local_experts",
        normalized=True,
        names=ExpertNames(router="mlp.router"),
        order="interleaved",
        has_biases=True,
        clamp=clamp_of(raw),
    )
    return _attention_biases(raw) | {"experts": experts, "has_sinks": True}


def _qwen3_5_fields(raw: Raw) -> Raw:
    return _attention_biases(raw) | {
        "qk_norm": True,
        "norm_offset": 1.0,
        "gated_attention": True,
        "recurrence": qwen_recurrence(raw),
        "unused": ("mtp.", "model.visual."),
    }


def _shared_expert(raw: Raw) -> Raw:
    return {
        "intermediate_size": whole_number(raw, "moe_intermediate_size", MOST_INNER),
        "shared_size": whole_number(raw, "shared_expert_intermediate_size", MOST_INNER),
        "shared_gate": "mlp.shared_expert_gate",
        "renamed": tuple((name, f"mlp.shared_expert.{name}") for name in ("gate_proj", "up_proj", "down_proj")),
    }


def _qwen3_5_moe_fields(raw: Raw) -> Raw:
    return _qwen3_5_fields(raw) | _shared_expert(raw) | {"experts": experts_of(raw, "num_experts", normalized=True)}


def _qwen3_next_fields(raw: Raw) -> Raw:
    experts = experts_of(raw, "num_experts", normalized=bool(raw.get("norm_topk_prob", True)))
    return (
        _qwen3_5_fields(raw)
        | _shared_expert(raw)
        | {"experts": experts, "recurrence": qwen_recurrence(raw, is_grouped=True)}
    )


def _granite_hybrid_fields(raw: Raw) -> Raw:
    fields: Raw = {"shared_size": whole_number(raw, "shared_intermediate_size", MOST_INNER)}
    if not raw.get("num_local_experts"):
        fields = {"intermediate_size": fields["shared_size"]}
    else:
        fields["experts"] = experts_of(raw, "num_local_experts", normalized=True, names=_GRANITE_NAMES)
    positions = raw.get("position_embedding_type")
    if positions not in (None, "nope", "rope"):
        raise UnsupportedModel("config.json: position_embedding_type must be rope, nope or null")
    return (
        _granite_fields(raw)
        | fields
        | {
            "recurrence": granite_recurrence(raw),
            "unrotated_layers": () if positions == "rope" else tuple(range(raw["num_hidden_layers"])),
            "fused": ("shared_mlp.input_linear",),
            "renamed": (("down_proj", "shared_mlp.output_linear"),),
        }
    )


_QWEN_LINEAR: Raw = {
    "head_dim": 256, "partial_rotary_factor": 0.25, "full_attention_interval": 4, "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
}  # fmt: skip

_GPT_OSS_ROPE: Raw = {
    "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    "original_max_position_embeddings": 4096,
}  # fmt: skip

_GEMMA_KEYS = (
    *("query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping"),
    *("hidden_activation", "use_bidirectional_attention"),
)
_GEMMA: Raw = {"tie_word_embeddings": True, "head_dim": 256, "sliding_window": 4096, "use_sliding_window": True}
_GELU = ("hidden_activation", "gelu_pytorch_tanh")
_GLM: Raw = {
    "head_dim": 128, "num_key_value_heads": 2, "partial_rotary_factor": 0.5, "attention_bias": True,
    "rms_norm_eps": 1.5625e-7,
}  # fmt: skip

FAMILIES: dict[str, Family] = {
    "llama": Family(architecture="LlamaForCausalLM", examples="Llama 3, SmolLM2, TinyLlama", fields=_attention_biases),
    "mistral": Family(
        architecture="MistralForCausalLM",
        examples="Mistral 7B, Nemo",
        differences="sliding windows",
        defaults={"use_sliding_window": True},
        kinds=_all_sliding,
    ),
    "ministral": Family(
        architecture="MinistralForCausalLM",
        examples="Ministral 8B (2024)",
        differences="windows in some layers",
        defaults={"use_sliding_window": True, "sliding_window": 4096},
        kinds=_all_sliding,
    ),
    "ministral3": Family(
        architecture="Ministral3ForCausalLM",
        examples="Ministral 3, its text model",
        differences="YaRN; queries grow with their position",
        defaults={"use_sliding_window": True, "head_dim": 128, "rms_norm_eps": 1e-5},
        kinds=_all_sliding,
        fields=_ministral3_fields,
    ),
    "qwen2": Family(
        architecture="Qwen2ForCausalLM",
        examples="Qwen2.5",
        differences="biases; windows in some layers",
        kinds=_last_sliding,
        keys=("max_window_layers",),
        fields=lambda raw: {"qkv_bias": True},
    ),
    "qwen3": Family(
        architecture="Qwen3ForCausalLM",
        examples="Qwen3, dense",
        differences="queries and keys are normed",
        kinds=_last_sliding,
        keys=("max_window_layers",),
        fields=lambda raw: _attention_biases(raw) | {"qk_norm": True},
    ),
    "smollm3": Family(
        architecture="SmolLM3ForCausalLM",
        examples="SmolLM3",
        differences="every fourth layer is not rotated",
        kinds=_unrotated_sliding,
        keys=("no_rope_layers", "no_rope_layer_interval", "max_window_layers"),
        fields=_smollm3_fields,
    ),
    "granite": Family(
        architecture="GraniteForCausalLM",
        examples="Granite 3 and 4, dense",
        differences="multipliers of the embedding, attention, residual stream and logits",
        keys=("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling"),
        fields=_granite_fields,
    ),
    "phi3": Family(
        architecture="Phi3ForCausalLM",
        examples="Phi-3, Phi-3.5 mini, Phi-4, Phi-4-mini",
        differences="fused matrices; a part of each head is rotated; LongRoPE",
        defaults={"use_sliding_window": True, "rms_norm_eps": 1e-5},
        kinds=_all_sliding,
        keys=("original_max_position_embeddings", "resid_pdrop", "embd_pdrop"),
        fields=_phi3_fields,
        rotates_partly=True,
    ),
    "gemma2": Family(
        architecture="Gemma2ForCausalLM",
        examples="Gemma 2",
        differences="GEGLU, four norms a layer, windows in every other layer, bounded scores and logits",
        defaults=_GEMMA | {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
        kinds=_every(2),
        keys=_GEMMA_KEYS,
        fields=_gemma2_fields,
        activation=_GELU,
    ),
    "gemma3_text": Family(
        architecture="Gemma3ForCausalLM",
        examples="Gemma 3 270M, 1B",
        differences="GEGLU, four norms a layer, two rotations",
        defaults=_GEMMA | {"rope_theta": 1e6},
        kinds=_every(6, "sliding_window_pattern", "_sliding_window_pattern"),
        keys=(*_GEMMA_KEYS, "sliding_window_pattern", "_sliding_window_pattern", "rope_local_base_freq"),
        fields=_gemma3_fields,
        activation=_GELU,
    ),
    "olmo2": Family(
        architecture="Olmo2ForCausalLM",
        examples="OLMo 2",
        differences="outputs are normed, not inputs; all queries are normed together, and all keys",
        defaults={"rms_norm_eps": 1e-5},
        fields=_olmo2_fields,
    ),
    "olmo3": Family(
        architecture="Olmo3ForCausalLM",
        examples="OLMo 3",
        differences="as OLMo 2; windows in three of four layers, two rotations",
        defaults={"rms_norm_eps": 1e-5, "rope_theta": 5e5, "sliding_window": 4096, "use_sliding_window": True},
        kinds=_every(4),
        fields=_olmo3_fields,
    ),
    "glm": Family(
        architecture="GlmForCausalLM",
        examples="GLM-4 9B (2024)",
        differences="fused gate and up; a half of each head is rotated, neighbours together",
        defaults=_GLM,
        fields=_glm_fields,
        rotates_partly=True,
    ),
    "glm4": Family(
        architecture="Glm4ForCausalLM",
        examples="GLM-4 0414, dense",
        differences="as GLM-4 of 2024, and four norms a layer",
        defaults=_GLM,
        fields=_glm4_fields,
        rotates_partly=True,
    ),
    "qwen3_moe": Family(
        architecture="Qwen3MoeForCausalLM",
        examples="Qwen3 30B-A3B, 235B-A22B",
        differences="as Qwen3; experts",
        defaults={
            "num_key_value_heads": 4,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 768,
            "sliding_window": 4096,
        },
        kinds=_all_sliding,
        keys=(
            "num_experts",
            "num_local_experts",
            "num_experts_per_tok",
            "moe_intermediate_size",
            "norm_topk_prob",
            "mlp_only_layers",
            "decoder_sparse_step",
            "max_window_layers",
        ),
        fields=_qwen3_moe_fields,
        computes=_has_experts_everywhere,
    ),
    "mixtral": Family(
        architecture="MixtralForCausalLM",
        examples="Mixtral 8x7B, 8x22B",
        differences="experts; windows",
        defaults={
            "num_key_value_heads": 8,
            "num_experts_per_tok": 2,
            "num_local_experts": 8,
            "rms_norm_eps": 1e-5,
            "use_sliding_window": True,
            "rope_theta": 1e6,
        },
        kinds=_all_sliding,
        keys=("num_local_experts", "num_experts_per_tok"),
        fields=_mixtral_fields,
    ),
    "gpt_oss": Family(
        architecture="GptOssForCausalLM",
        examples="gpt-oss 20B, 120B",
        differences="experts with biases and a bounded gate; sinks; windows in every other layer; MXFP4",
        defaults={
            "head_dim": 64,
            "num_key_value_heads": 8,
            "num_experts_per_tok": 4,
            "num_local_experts": 128,
            "rms_norm_eps": 1e-5,
            "sliding_window": 128,
            "use_sliding_window": True,
            "attention_bias": True,
            "rope_theta": 150000.0,
            "rope_scaling": _GPT_OSS_ROPE,
        },
        kinds=_every_other,
        keys=(
            "num_local_experts",
            "num_experts_per_tok",
            "swiglu_alpha",
            "swiglu_limit",
            "initial_context_length",
            "experts_per_token",
        ),
        fields=_gpt_oss_fields,
    ),
    "granitemoe": Family(
        architecture="GraniteMoeForCausalLM",
        examples="Granite 3 1B-A400M, 3B-A800M",
        differences="as Granite; experts",
        defaults={"num_local_experts": 8, "num_experts_per_tok": 2},
        keys=(
            "embedding_multiplier",
            "attention_multiplier",
            "residual_multiplier",
            "logits_scaling",
            "num_local_experts",
            "num_experts_per_tok",
        ),
        fields=_granitemoe_fields,
    ),
    "olmoe": Family(
        architecture="OlmoeForCausalLM",
        examples="OLMoE 1B-7B",
        differences="experts; all queries are normed together, and all keys",
        defaults={"num_experts_per_tok": 8, "rms_norm_eps": 1e-5},
        keys=("num_experts", "num_experts_per_tok", "norm_topk_prob"),
        fields=_olmoe_fields,
        computes=lambda raw: raw.get("clip_qkv") is None,
    ),
    "qwen3_5_text": Family(
        architecture="Qwen3_5ForCausalLM",
        examples="Qwen3.5 and 3.6, dense, text",
        differences="three of four layers have a gated delta rule; attention has gates",
        defaults=_QWEN_LINEAR | {"num_key_value_heads": 4},
        keys=tuple(_QWEN_LINEAR),
        fields=_qwen3_5_fields,
        rotates_partly=True,
        wrapper="qwen3_5",
    ),
    "qwen3_5_moe_text": Family(
        architecture="Qwen3_5MoeForCausalLM",
        examples="Qwen3.5 and 3.6 35B-A3B, text",
        differences="as Qwen3.5; experts, and one for all tokens",
        defaults=_QWEN_LINEAR
        | {
            "num_key_value_heads": 2,
            "intermediate_size": 1,
            "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512,
            "num_experts": 256,
            "num_experts_per_tok": 8,
        },
        keys=(*_QWEN_LINEAR, "num_experts", "num_experts_per_tok"),
        fields=_qwen3_5_moe_fields,
        rotates_partly=True,
        wrapper="qwen3_5_moe",
    ),
    "qwen3_next": Family(
        architecture="Qwen3NextForCausalLM",
        examples="Qwen3-Next 80B-A3B",
        differences="as Qwen3.5 with experts; fused inputs of states",
        defaults=_QWEN_LINEAR
        | {
            "num_key_value_heads": 2,
            "intermediate_size": 5632,
            "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512,
            "num_experts": 512,
            "num_experts_per_tok": 10,
        },
        keys=(*_QWEN_LINEAR, "num_experts", "num_experts_per_tok", "norm_topk_prob"),
        fields=_qwen3_next_fields,
        rotates_partly=True,
        computes=_has_experts_everywhere,
    ),
    "granitemoehybrid": Family(
        architecture="GraniteMoeHybridForCausalLM",
        examples="Granite 4, H-micro, H-tiny, H-small",
        differences="as Granite; most layers are Mamba-2's; in some models experts beside a part for all tokens",
        defaults={
            "mamba_d_conv": 4,
            "mamba_d_state": 256,
            "mamba_expand": 2,
            "mamba_n_groups": 1,
            "mamba_n_heads": 128,
            "num_experts_per_tok": 2,
            "num_local_experts": 8,
            "shared_intermediate_size": 1024,
        },
        keys=(
            "embedding_multiplier",
            "attention_multiplier",
            "residual_multiplier",
            "logits_scaling",
            "num_local_experts",
            "num_experts_per_tok",
            "mamba_d_state",
        ),
        fields=_granite_hybrid_fields,
    ),
}
"""The families that the engine's own code computes, by `model_type`, with the differences of each from Llama."""
