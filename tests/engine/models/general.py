"""Tiny random models of families that transformers computes, and adapters on their linears."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from adapters.store import AdapterStore
from engine.config import EngineConfig
from engine.protocol import GenerateRequest
from tests.engine.harness import Answer, engine_config, greedy
from tests.engine.models.tiny import TINY
from tests.engine.reference import Claim, assert_greedy_follows

TOLERANCE = 1e-4

EXPERTS = {"num_experts_per_tok": 2, "num_local_experts": 4}
FAMILIES: dict[str, dict[str, Any]] = {
    # LayerNorm, biases, a feed-forward part without a gate, windows
    "starcoder2": {"sliding_window": 20},
    # values narrower than keys, projections of low rank, experts beside a dense first layer
    "deepseek_v3": {
        "num_key_value_heads": 6,
        "q_lora_rank": 24,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 16,
        "v_head_dim": 12,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "n_group": 2,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "n_shared_experts": 1,
    },
    # layers elsewhere than in `model`, a fused product of queries, keys and values, rotation of a part
    "gpt_neox": {"rotary_pct": 0.5},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16},
    "mixtral": EXPERTS | {"sliding_window": 20},
    "granitemoe": EXPERTS | {"embedding_multiplier": 6.0, "attention_multiplier": 0.05, "residual_multiplier": 0.3},
    # sinks, and windows in every other layer
    "gpt_oss": EXPERTS | {"head_dim": 16, "sliding_window": 20},
    # attention and feed-forward part from one LayerNorm, neighbours rotated together, queries and keys normed by head
    "cohere": {"use_qk_norm": True, "logit_scale": 0.5},
    # windows, and layers without rotation that see everything
    "cohere2": {
        "logit_scale": 0.5,
        "sliding_window": 20,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    # capped scores and logits
    "gemma2": {"head_dim": 16, "sliding_window": 20},
}
STATEFUL: dict[str, dict[str, Any]] = {
    "falcon_h1": {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8, "head_dim": 8},
}
"""Families in which each layer has attention and another state."""
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
ADAPTED: dict[str, dict[str, LoraConfig]] = {
    "starcoder2": {
        "all": LoraConfig(r=5, lora_alpha=7, target_modules="all-linear"),
        "mlp": LoraConfig(r=3, lora_alpha=9, target_modules=["c_fc", "c_proj"], rank_pattern={"c_fc": 6}),
    },
    "deepseek_v3": {"attention": LoraConfig(r=4, lora_alpha=8, target_modules=["q_a_proj", "kv_b_proj", "o_proj"])},
    "gpt_neox": {"all": LoraConfig(r=5, lora_alpha=7, target_modules="all-linear")},
    "qwen3_moe": {"attention": LoraConfig(r=4, lora_alpha=8, target_modules=ATTENTION)},
    "mixtral": {"attention": LoraConfig(r=4, lora_alpha=8, target_modules=ATTENTION)},
    "granitemoe": {"attention": LoraConfig(r=4, lora_alpha=8, target_modules=ATTENTION)},
    "cohere": {"all": LoraConfig(r=5, lora_alpha=7, target_modules="all-linear")},
    "cohere2": {
        "all": LoraConfig(r=5, lora_alpha=7, target_modules="all-linear"),
        "mlp": LoraConfig(r=3, lora_alpha=9, target_modules=["up_proj", "o_proj"], rank_pattern={"o_proj": 6}),
    },
    "gemma2": {"all": LoraConfig(r=4, lora_alpha=8, target_modules="all-linear")},
    "gpt_oss": {"attention": LoraConfig(r=4, lora_alpha=8, target_modules=ATTENTION)},
}


def save_general(family: str, folder: Path, **changes: Any) -> PreTrainedModel:
    """Return a random model of a family, saved to a folder; biases and norms are not at their neutral values."""
    torch.manual_seed(len(family))
    config = AutoConfig.for_model(family, **(TINY | FAMILIES.get(family, {}) | changes))
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder)
    return model


class AdaptedBase:
    """A tiny model in a folder, adapters on all its linears and on some of them, and peft's models of each."""

    def __init__(
        self, root: Path, family: str, adapters: dict[str, dict[str, Any]] | None = None, /, **changes: Any
    ) -> None:
        """Create the model and its adapters.

        adapters: the arguments of `LoraConfig` besides rank and alpha. None: those that ADAPTED has for the family.
        changes: fields of the config.
        """
        loras = ADAPTED.get(family, {})
        if adapters is not None:
            loras = {name: LoraConfig(**({"r": 4, "lora_alpha": 8} | lora)) for name, lora in adapters.items()}
        self.folder, self.store = root / "model", root / "store"
        self.models: dict[str, torch.nn.Module] = {"": save_general(family, self.folder, **changes)}
        self.digests = {"": ""}
        for name, lora in loras.items():
            torch.manual_seed(len(name))
            model = get_peft_model(AutoModelForCausalLM.from_pretrained(self.folder), lora)
            with torch.no_grad():
                for parameter_name, parameter in model.named_parameters():
                    if "lora_" in parameter_name:
                        parameter.normal_(0, 0.1)
            model.save_pretrained(root / name)
            self.digests[name] = AdapterStore(self.store).add(root / name)
            base = AutoModelForCausalLM.from_pretrained(self.folder)
            self.models[name] = PeftModel.from_pretrained(base, root / name).eval()

    def config(self, **changes: object) -> EngineConfig:
        """Return a configuration in which transformers computes the model."""
        return engine_config(self.folder, self.store, **({"decoder": "transformers"} | changes))

    def requests(self, lengths: tuple[int, ...], num_tokens: int) -> list[GenerateRequest]:
        """Return requests for the base and for each adapter, one for each length of prompt."""
        torch.manual_seed(5)
        return [
            greedy(f"{name}/{length}", torch.randint(0, 199, (length,)).tolist(), num_tokens, adapter=digest)
            for length in lengths
            for name, digest in self.digests.items()
        ]

    def assert_follow(self, requests: list[GenerateRequest], answers: dict[str, Answer]) -> None:
        for request in requests:
            answer = answers[request.request_id]
            assert answer.final.finish_reason == "length", answer.final.error
            claim = Claim(request.prompt_token_ids, answer.token_ids, answer.logprobs)
            assert_greedy_follows(self.models[request.request_id.partition("/")[0]], [claim], TOLERANCE)
