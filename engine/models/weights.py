"""A base model's weights, as the tensors that a step multiplies. Where they come from is `engine.models.checkpoint`'s.

Projections that share an input are fused: q, k, v into one matrix, gate and up into another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec
from torch import Tensor

from kernels.linear import Linear


class Norm(Protocol):
    """A root-mean-square norm of the last dimension, as `kernels.norm.RmsNorm`."""

    def __call__(self, x: Tensor) -> Tensor: ...


MakeNorm = Callable[[Tensor, float], Norm]  # of a weight and its epsilon


class LayerWeights(msgspec.Struct, frozen=True):
    """One decoder layer. H hidden, Q = heads * D, K = kv_heads * D, I intermediate."""

    input_norm: Norm  # [H]
    qkv: Linear  # H -> Q + 2K
    q_norm: Norm | None  # [D]
    k_norm: Norm | None  # [D]
    o: Linear  # Q -> H
    post_norm: Norm  # [H]
    gate_up: Linear  # H -> 2I
    down: Linear  # I -> H


class ModelWeights(msgspec.Struct, frozen=True):
    embed: Tensor  # [V, H]
    layers: list[LayerWeights]
    norm: Norm  # [H]
    lm_head: Linear  # H -> V; of the embedding where they are tied
