"""Adapters in host memory, as a loader leaves them, of a tiny shape."""

from __future__ import annotations

import torch

from engine.lora.layer import AdapterLayout, LoadedAdapter, ModuleKey

TARGETS = {
    "q_proj": (16, 32),
    "k_proj": (16, 16),
    "v_proj": (16, 16),
    "o_proj": (32, 16),
    "gate_proj": (16, 24),
    "up_proj": (16, 24),
    "down_proj": (24, 16),
}
NUM_LAYERS = 3


def adapter(name: str, ranks: dict[ModuleKey, int], scaling: float = 2.0) -> LoadedAdapter:
    layout = AdapterLayout(ranks, TARGETS)
    weights = torch.randn(layout.num_elements, generator=torch.Generator().manual_seed(sum(name.encode())))
    groups = layout.groups_of(weights)
    scalings = {key: (scaling,) * len(group.projections) for key, group in groups.items()}
    return LoadedAdapter(name, scalings, weights.nbytes, layout, weights, groups)


def adapter_on_all_linears(name: str, rank: int) -> LoadedAdapter:
    return adapter(name, {(layer, projection): rank for layer in range(NUM_LAYERS) for projection in TARGETS})
