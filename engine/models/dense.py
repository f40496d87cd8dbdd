"""The forward pass by its definition: one sequence, no cache, every matrix in fp32, adapters merged into them.

The reference of `engine.models.decoder` and of everything that a device does to be fast. Slow by design.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.lora.layer import LoadedAdapter, ModuleKey
from engine.models.rope import cos_and_sin, query_factors
from engine.models.weights import Take
from kernels.activation import gelu_mul_reference, silu_mul_reference
from kernels.norm import rms_norm_reference
from kernels.rope import rope_reference


class DenseModel:
    """A model that computes by the definition, with one matrix in fp32 in memory at a time.

    take: returns the checkpoint's tensors, read anew at every use. adapter: None for the base model.
    """

    def __init__(self, config: ModelConfig, take: Take, adapter: LoadedAdapter | None = None) -> None:
        self._config = config
        self._take = take
        self._factors = {} if adapter is None else _factors(adapter)

    @torch.inference_mode()
    def logits(self, token_ids: Sequence[int]) -> Tensor:
        """Return the logits of every position: [T] -> [T, V] fp32."""
        config = self._config
        embed = self._take("model.embed_tokens.weight", (config.vocab_size, config.hidden_size)).float()
        x = embed[torch.tensor(token_ids, device=embed.device)] * config.embedding_multiplier
        for index in range(config.num_layers):
            prefix, norms = f"model.layers.{index}", config.norms
            attended = self._attention(index, self._optional_norm(prefix, norms.before_attention, x))
            x = x + config.residual_multiplier * self._optional_norm(prefix, norms.after_attention, attended)
            fed = self._feed_forward(index, self._optional_norm(prefix, norms.before_feed_forward, x))
            x = x + config.residual_multiplier * self._optional_norm(prefix, norms.after_feed_forward, fed)
        if not config.tie_word_embeddings:
            embed = self._take("lm_head.weight", (config.vocab_size, config.hidden_size)).float()
        return _soft_capped(self._norm("model.norm", x) @ embed.T / config.logits_divisor, config.logits_softcap)

    def _attention(self, index: int, x: Tensor) -> Tensor:
        config, num_tokens = self._config, len(x)
        q, k, v = (self._project(index, "self_attn", name, x) for name in ("q_proj", "k_proj", "v_proj"))
        if config.whole_qk_norm:
            q = self._norm(f"model.layers.{index}.self_attn.q_norm", q)
            k = self._norm(f"model.layers.{index}.self_attn.k_norm", k)
        q, k, v = (each.view(num_tokens, -1, config.head_dim) for each in (q, k, v))
        if config.qk_norm:
            q = self._norm(f"model.layers.{index}.self_attn.q_norm", q)
            k = self._norm(f"model.layers.{index}.self_attn.k_norm", k)
        tables = cos_and_sin(config.rope_of(index), config.head_dim, num_tokens)
        cos, sin = (table[-num_tokens:].to(x.device) for table in tables)
        factors = query_factors(config, num_tokens)
        group = config.num_heads // config.num_kv_heads
        if index not in config.unrotated_layers:
            q, k = rope_reference(q, cos, sin), rope_reference(k, cos, sin)
        factor = config.head_dim**-0.5 if config.attention_multiplier is None else config.attention_multiplier
        if factors is not None:
            q = q * factors.to(x.device)[:, None, None]
        scores = torch.einsum("ihd,jhd->hij", q, k.repeat_interleave(group, 1)) * factor
        scores = _soft_capped(scores, config.attention_softcap)
        position = torch.arange(num_tokens, device=x.device)
        distance = position[:, None] - position
        visible = (distance >= 0) & (distance < (config.window(index) or num_tokens))
        weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
        attended = torch.einsum("hij,jhd->ihd", weights, v.repeat_interleave(group, 1))
        return self._project(index, "self_attn", "o_proj", attended.flatten(1))

    def _feed_forward(self, index: int, x: Tensor) -> Tensor:
        gate, up = (self._project(index, "mlp", name, x) for name in ("gate_proj", "up_proj"))
        gated = silu_mul_reference if self._config.activation == "silu" else gelu_mul_reference
        return self._project(index, "mlp", "down_proj", gated(torch.cat((gate, up), -1)))

    def _project(self, index: int, block: str, name: str, x: Tensor) -> Tensor:
        config = self._config
        width, height = config.projection_shapes()[name]
        prefix = f"model.layers.{index}.{block}.{name}"
        matrix = self._take(f"{prefix}.weight", (height, width)).to(torch.float32, copy=True)
        if (index, name) in self._factors:
            a, b, scaling = self._factors[index, name]
            matrix += scaling * (b.to(matrix.device).float().T @ a.to(matrix.device).float())
        out = x @ matrix.T
        if config.o_bias if name == "o_proj" else config.qkv_bias and block == "self_attn":
            out = out + self._take(f"{prefix}.bias", (height,)).float()
        return out

    def _optional_norm(self, prefix: str, name: str, x: Tensor) -> Tensor:
        return self._norm(f"{prefix}.{name}", x) if name else x

    def _norm(self, name: str, x: Tensor) -> Tensor:
        weight = self._take(f"{name}.weight", x.shape[-1:]).float() + self._config.norm_offset
        return rms_norm_reference(x, weight, self._config.rms_norm_eps)


def _soft_capped(x: Tensor, cap: float) -> Tensor:
    return cap * torch.tanh(x / cap) if cap else x


def _factors(adapter: LoadedAdapter) -> dict[ModuleKey, tuple[Tensor, Tensor, float]]:
    """Return A [r, in], B transposed [r, out] and the scaling, by layer and projection."""
    factors = {}
    for (layer, group), weights in adapter.groups.items():
        shrinks = torch.split(weights.a, [len(b) for b in weights.bs])
        scalings = adapter.scalings[layer, group]
        for p, a, b, scaling in zip(weights.projections, shrinks, weights.bs, scalings, strict=True):
            factors[layer, group[p]] = a, b, scaling
    return factors
