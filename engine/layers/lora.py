"""The adapters of one step, laid out for the batch: which rows use which weights.

Decode rows that use an adapter come first in a batch, so that their masked products touch no base row; each prefill
chunk that uses one is a run of rows of its own. A batch without adapters has no `StepLora` and runs no LoRA operation.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import torch
from torch import Tensor

from kernels.lora import add_lora_, add_mixed_lora_, rank_mask

Group = tuple[str, ...]

QKV: Group = ("q_proj", "k_proj", "v_proj")
OUT: Group = ("o_proj",)
GATE_UP: Group = ("gate_proj", "up_proj")
DOWN: Group = ("down_proj",)
GROUPS = (QKV, OUT, GATE_UP, DOWN)  # projections of one group share their input


class Module(msgspec.Struct, frozen=True):
    """One adapted projection of one layer at its true rank: a [r, in], b [out, r]."""

    a: Tensor
    b: Tensor
    scaling: float


class LoadedAdapter(msgspec.Struct, frozen=True):
    """An adapter on the device: {(layer, projection): Module}."""

    digest: str
    modules: dict[tuple[int, str], Module]
    num_bytes: int


class _GroupStack(msgspec.Struct, frozen=True):
    """All adapters of a set side by side for one group of projections of one layer (see kernels.lora)."""

    a: Tensor  # [R, in]
    bs: list[Tensor]  # P x [R_p, out_p]
    ranks: tuple[tuple[int, ...], ...]  # per projection, per adapter
    scalings: tuple[tuple[float, ...], ...]


class AdapterStack:
    """The weights of a set of adapters, concatenated once and used for as many steps as the set lasts."""

    def __init__(self, adapters: Sequence[LoadedAdapter], num_layers: int, out_features: dict[str, int]) -> None:
        self.index = {adapter.digest: g for g, adapter in enumerate(adapters)}
        self._groups = {
            (layer, group): stack
            for layer in range(num_layers)
            for group in GROUPS
            if (stack := _stack_group(adapters, layer, group, out_features)) is not None
        }

    def group(self, layer: int, group: Group) -> _GroupStack | None:
        return self._groups.get((layer, group))

    def masks_for(self, row_adapter: Tensor) -> dict[tuple[int, Group], Tensor]:
        """{(layer, group): mask [N, R]} for rows given as indexes into this set; equal layers share one mask."""
        shared: dict[object, Tensor] = {}
        masks = {}
        for key, stack in self._groups.items():
            signature = (stack.ranks, stack.scalings)
            if signature not in shared:
                parts = [
                    rank_mask(ranks, scalings, row_adapter)
                    for ranks, scalings in zip(stack.ranks, stack.scalings, strict=True)
                ]
                shared[signature] = torch.cat(parts, 1)
            masks[key] = shared[signature]
        return masks


def _stack_group(
    adapters: Sequence[LoadedAdapter], layer: int, group: Group, out_features: dict[str, int]
) -> _GroupStack | None:
    per_projection = [[adapter.modules.get((layer, name)) for adapter in adapters] for name in group]
    some = next((module for modules in per_projection for module in modules if module is not None), None)
    if some is None:
        return None
    return _GroupStack(
        a=torch.cat([module.a for modules in per_projection for module in modules if module is not None]),
        bs=[
            torch.cat([module.b.T for module in modules if module is not None])
            if any(modules)
            else some.b.new_empty(0, out_features[name])
            for name, modules in zip(group, per_projection, strict=True)
        ],
        ranks=tuple(tuple(m.a.shape[0] if m is not None else 0 for m in modules) for modules in per_projection),
        scalings=tuple(tuple(m.scaling if m is not None else 0.0 for m in modules) for modules in per_projection),
    )


class StepLora:
    """One step's adapters. num_rows: decode rows with an adapter, rows[:num_rows]; segments: (adapter, first, last)."""

    def __init__(
        self, stack: AdapterStack | None, row_adapter: Tensor, segments: Sequence[tuple[LoadedAdapter, int, int]]
    ) -> None:
        self._stack = stack
        self._num_rows = row_adapter.shape[0]
        self._masks = stack.masks_for(row_adapter) if stack is not None else {}
        self._segments = segments

    def add_(self, layer: int, group: Group, x: Tensor, outs: Sequence[Tensor]) -> None:
        """Add every row's delta: x [N, in], outs one [N, out_p] for each projection of the group, in place."""
        stacked = self._stack.group(layer, group) if self._stack is not None else None
        if stacked is not None:
            rows = slice(0, self._num_rows)
            add_mixed_lora_([out[rows] for out in outs], x[rows], stacked.a, stacked.bs, self._masks[layer, group])
        for adapter, first, last in self._segments:
            for projection, out in zip(group, outs, strict=True):
                module = adapter.modules.get((layer, projection))
                if module is not None:
                    add_lora_(out[first:last], x[first:last], module.a, module.b, module.scaling)
