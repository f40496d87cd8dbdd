"""Converts a checkpoint's layout of matrices to the engine's: fused ones apart, and heads in the order of rotation.

The same holds for adapters, whose fused modules become several that share one A. Knows no files.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from adapters.patterns.module_names import BLOCK_OF_PROJECTION
from engine.config import ModelConfig
from engine.config.model import FUSED, ExpertModule

REORDERED = ("q_proj", "k_proj")
_NORMS = ("q_norm", "k_norm")


class FusedPart(NamedTuple):
    """Rows from `first` of a fused matrix or bias, or all rows of one that goes by another name."""

    source: str
    """The name of the tensor."""
    first: int
    """The first row in the tensor."""
    num_rows: int
    """The number of all rows of the tensor."""


def part_of(name: str, config: ModelConfig) -> FusedPart | None:
    """Return where a tensor lies in a fused one or under another name; None where the model has it as Llama does.

    name: Llama's, such as `model.layers.0.self_attn.k_proj.weight`.
    """
    for module in config.fused:
        for projection in FUSED[module]:
            usual = f".{BLOCK_OF_PROJECTION[projection]}.{projection}."
            if usual not in name:
                continue
            heights = [config.projection_shape(each)[1] for each in FUSED[module]]
            first = sum(heights[: FUSED[module].index(projection)])
            return FusedPart(name.replace(usual, f".{module}."), first, sum(heights))
    for own, module in config.renamed:
        usual = f".{BLOCK_OF_PROJECTION[own]}.{own}."
        if usual in name:
            return FusedPart(name.replace(usual, f".{module}."), 0, config.projection_shapes()[own][1])
    return None


def in_order(name: str, tensor: Tensor, config: ModelConfig) -> Tensor:
    """Return a tensor with the dimensions of its heads in the engine's order, if it has heads of queries or keys.

    name: the tensor's name in the checkpoint; tensor [heads * head_dim, ...] or [head_dim].
    """
    words = name.split(".")
    if len(words) > 1 and words[-2] == "q_proj" and config.gated_attention:
        return _gates_last(tensor, config)
    if config.recurrence is not None and len(words) > 2:
        tensor = _ungrouped(tensor, config.recurrence.parts_of_groups(".".join(words[-3:-1])))
    order = config.head_order() if len(words) > 1 and words[-2] in (*REORDERED, *_NORMS) else None
    return tensor if order is None else _rows_in_order(tensor, order)


def outputs_of(projection: str, outputs: Tensor, config: ModelConfig) -> Tensor:
    """Return B of an adapter's projection, [out, r], with its outputs in the engine's order."""
    if projection == "q_proj" and config.gated_attention:
        return _gates_last(outputs, config)
    if config.recurrence is not None:
        outputs = _ungrouped(outputs, config.recurrence.parts_of_groups(projection))
    order = config.head_order() if projection in REORDERED else None
    return outputs if order is None else _rows_in_order(outputs, order)


def expert_outputs(projection: str, module: ExpertModule, config: ModelConfig) -> slice:
    """Return the outputs of an adapter's module of experts that are those of a projection."""
    experts, height = config.experts, config.expert_shapes()[projection][1]
    place = module.projections.index(projection)
    if len(module.projections) > 1 and experts is not None and experts.order == "interleaved":
        return slice(place, None, len(module.projections))
    return slice(place * height, (place + 1) * height)


def _gates_last(tensor: Tensor, config: ModelConfig) -> Tensor:
    """Return queries with gates, [heads * 2 * head_dim, ...], as queries of all heads, in order, and then all gates."""
    by_head = tensor.reshape(config.num_heads, 2, config.head_dim, *tensor.shape[1:])
    order, queries = config.head_order(), by_head[:, 0].flatten(0, 1)
    return torch.cat((queries if order is None else _rows_in_order(queries, order), by_head[:, 1].flatten(0, 1)))


def _ungrouped(tensor: Tensor, parts: Sequence[int]) -> Tensor:
    """Return outputs in groups of parts of these sizes, [groups * sum(parts), ...], part by part of all groups."""
    if not parts:
        return tensor
    by_group = tensor.reshape(-1, sum(parts), *tensor.shape[1:])
    return torch.cat([part.flatten(0, 1) for part in torch.split(by_group, list(parts), 1)])


def _rows_in_order(tensor: Tensor, order: Sequence[int]) -> Tensor:
    by_head = tensor.reshape(-1, len(order), *tensor.shape[1:])
    return by_head[:, torch.tensor(order, device=tensor.device)].reshape(tensor.shape)
