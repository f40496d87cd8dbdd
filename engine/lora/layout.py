"""From a checkpoint's layout of matrices to the engine's: fused ones apart, and heads in the order of rotation.

The same holds for adapters, whose fused modules become several that share one A. Knows no files.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.config.model import FUSED, ExpertModule

REORDERED = ("q_proj", "k_proj")
_NORMS = ("q_norm", "k_norm")


class Part(NamedTuple):
    """Rows from `first` of a fused matrix or bias."""

    source: str
    """The name of the fused tensor."""
    first: int
    num_rows: int
    """The rows of the fused tensor."""


def part_of(name: str, config: ModelConfig) -> Part | None:
    """Return where a tensor lies in a fused one; None where the model has it apart.

    name: as where nothing is fused, such as `model.layers.0.self_attn.k_proj.weight`.
    """
    for module in config.fused:
        block, fused = module.split(".")
        for projection in FUSED[module]:
            tail = f"{block}.{projection}."
            if tail not in name:
                continue
            heights = [config.projection_shape(each)[1] for each in FUSED[module]]
            first = sum(heights[: FUSED[module].index(projection)])
            return Part(name.replace(tail, f"{block}.{fused}."), first, sum(heights))
    return None


def in_order(name: str, tensor: Tensor, config: ModelConfig) -> Tensor:
    """Return a tensor with the dimensions of its heads in the engine's order, if it has heads of queries or keys.

    name: the tensor's name in the checkpoint; tensor [heads * head_dim, ...] or [head_dim].
    """
    words = name.split(".")
    order = config.head_order() if len(words) > 1 and words[-2] in (*REORDERED, *_NORMS) else None
    return tensor if order is None else _reordered(tensor, order)


def outputs_of(projection: str, outputs: Tensor, config: ModelConfig) -> Tensor:
    """Return B of an adapter's projection, [out, r], with its outputs in the engine's order."""
    order = config.head_order() if projection in REORDERED else None
    return outputs if order is None else _reordered(outputs, order)


def expert_outputs(projection: str, module: ExpertModule, config: ModelConfig) -> slice:
    """Return the outputs of an adapter's module of experts that are those of a projection."""
    experts, height = config.experts, config.expert_shapes()[projection][1]
    place = module.projections.index(projection)
    if len(module.projections) > 1 and experts is not None and experts.order == "interleaved":
        return slice(place, None, len(module.projections))
    return slice(place * height, (place + 1) * height)


def _reordered(tensor: Tensor, order: Sequence[int]) -> Tensor:
    by_head = tensor.reshape(-1, len(order), *tensor.shape[1:])
    return by_head[:, torch.tensor(order, device=tensor.device)].reshape(tensor.shape)
