"""The numbers of a base model's `config.json` on which a forward pass depends. Knows no file and no device."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

Projection = Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
PROJECTIONS: tuple[Projection, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class UnsupportedModel(ValueError):
    """The model folder asks for something this engine does not compute; the message names the config key."""


class RopeParameters(msgspec.Struct, frozen=True):
    """The rotary embedding of one model (Su et al., 2021)."""

    theta: float
    kind: str = "default"
    """default; linear (positions divided by factor); llama3 (low frequencies divided, Llama 3.1); yarn (Peng et al.,
    2023)."""
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0
    """The factor of cos and sin."""


class ModelConfig(msgspec.Struct, frozen=True):
    """A decoder of the Llama family, as its `config.json` describes it."""

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: RopeParameters
    max_position: int
    tie_word_embeddings: bool
    qkv_bias: bool = False
    """True where queries, keys and values have biases: Qwen2, and others with attention_bias."""
    o_bias: bool = False
    """True where the output of attention has a bias: Llama, Qwen3, SmolLM3 and Granite with attention_bias."""
    qk_norm: bool = False
    """True where queries and keys are normed by head: Qwen3 and Gemma 3."""
    activation: Literal["silu", "gelu_tanh"] = "silu"
    """The function of the gate: Gemma has gelu by its approximation with tanh."""
    norm_offset: float = 0.0
    """The number that is added to the weight of each norm: 1 for Gemma."""
    output_norms: bool = False
    """True where the outputs of attention and of the feed-forward part are normed before they are added: Gemma 3."""
    window_rope: RopeParameters | None = None
    """The rotation of layers with a window, where it is another one: Gemma 3."""
    windows: tuple[int | None, ...] = ()
    """For each layer the number of tokens that a position sees, itself included; None sees all. Empty: all see all."""
    unrotated_layers: tuple[int, ...] = ()
    """Layers whose queries and keys are not rotated (SmolLM3; Yang et al., 2025, arXiv 2501.18795)."""
    embedding_multiplier: float = 1.0
    """The factor of the embedding of each token: Granite, and Gemma."""
    attention_multiplier: float | None = None
    """The factor of attention's scores, for Granite and Gemma; None: one by the root of head_dim."""
    residual_multiplier: float = 1.0
    """The factor of the sums that attention and the feed-forward part add to the residual stream: Granite."""
    logits_divisor: float = 1.0
    """The divisor of logits: Granite."""
    eos_token_ids: tuple[int, ...] = ()
    embedding_sizes: tuple[int, ...] = ()
    """The sizes to which an embedding may be shortened, hidden_size among them. Empty: only hidden_size."""
    decoder: Literal["own", "transformers"] = "own"
    """The code that computes the model; for `transformers`, the fields that tell how are not read."""
    modules: tuple[tuple[str, int, int], ...] = ()
    """Where transformers computes it, the modules that an adapter may target: short names, inputs, outputs."""
    groups: tuple[tuple[str, ...], ...] = ()
    """Where transformers computes it and it is loaded, the names of the modules that share an input, together."""

    @property
    def query_multiplier(self) -> float:
        """The factor of queries with which scores, divided by the root of head_dim, have the factor that is wanted."""
        return 1.0 if self.attention_multiplier is None else self.attention_multiplier * math.sqrt(self.head_dim)

    def rope_of(self, layer: int) -> RopeParameters:
        """Return the rotation of a layer's queries and keys."""
        return self.rope if self.window_rope is None or self.window(layer) is None else self.window_rope

    def window(self, layer: int) -> int | None:
        """Return the number of tokens that a position of a layer sees, itself included; None for all."""
        return self.windows[layer] if self.windows else None

    def projection_shape(self, projection: Projection) -> tuple[int, int]:
        """Return (in_features, out_features) of one linear of a layer."""
        q, kv = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        return {
            "q_proj": (self.hidden_size, q),
            "k_proj": (self.hidden_size, kv),
            "v_proj": (self.hidden_size, kv),
            "o_proj": (q, self.hidden_size),
            "gate_proj": (self.hidden_size, self.intermediate_size),
            "up_proj": (self.hidden_size, self.intermediate_size),
            "down_proj": (self.intermediate_size, self.hidden_size),
        }[projection]

    def adapter_targets(self) -> dict[str, tuple[int, int]]:
        """Return the modules that an adapter may target in each layer: {projection: (in_features, out_features)}."""
        if self.decoder == "transformers":
            return {name: (num_in, num_out) for name, num_in, num_out in self.modules}
        return {projection: self.projection_shape(projection) for projection in PROJECTIONS}
