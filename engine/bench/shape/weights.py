"""Random weights and adapters: a name always gives the same tensor."""

from __future__ import annotations

import zlib

import msgspec
import torch
from torch import Tensor

from engine.config import PROJECTIONS, ModelConfig
from engine.lora.layer import AdapterLayout, LoadedAdapter

ADAPTER_SHARE = 0.3  # the size of an adapter's delta beside the product that it is added to
NUM_DISTINCT = 32  # sets of weights that any number of adapters share


class RandomTensors:
    """A checkpoint's tensors (`engine.models.weights.Take`), scaled so that hidden states keep their size."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype = dtype
        self._device = device

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return the tensor of a name, around 1 for a norm's weight and around 0 for a matrix."""
        generator = torch.Generator(self._device).manual_seed(zlib.crc32(name.encode()))
        tensor = torch.randn(shape, generator=generator, dtype=self._dtype, device=self._device)
        return tensor.mul_(0.1).add_(1) if len(shape) == 1 else tensor.mul_(shape[-1] ** -0.5)


class RandomAdapters:
    """Adapters on all projections, in host memory; `load` is used in place of a loader's.

    ranks: the ranks of adapters, one after the other. pin: whether the memory is page-locked, for faster copies to a
    GPU.
    """

    def __init__(self, config: ModelConfig, dtype: torch.dtype, ranks: list[int], *, pin: bool) -> None:
        targets = config.projection_shapes()
        self._layouts = [
            AdapterLayout({(layer, name): rank for layer in range(config.num_layers) for name in PROJECTIONS}, targets)
            for rank in ranks
        ]
        self._ranks = ranks
        self._dtype = dtype
        self._pin = pin
        self._made: dict[int, LoadedAdapter] = {}

    def load(self, key: str) -> LoadedAdapter:
        """Return an adapter. key: a number; keys that are equal modulo NUM_DISTINCT have the same weights."""
        kind = int(key) % NUM_DISTINCT
        if kind not in self._made:
            self._made[kind] = self._make_adapter(kind)
        return msgspec.structs.replace(self._made[kind], key=key)

    def _make_adapter(self, kind: int) -> LoadedAdapter:
        rank = self._ranks[kind % len(self._ranks)]
        layout = self._layouts[kind % len(self._ranks)]
        generator = torch.Generator().manual_seed(kind)
        weights = torch.empty(layout.num_elements, dtype=self._dtype, pin_memory=self._pin)
        # All matrices use one stretch of random numbers: billions of them on a CPU would take minutes.
        pattern = torch.randn(min(1 << 20, layout.num_elements), generator=generator).to(self._dtype)
        for first in range(0, layout.num_elements, len(pattern)):
            part = weights[first : first + len(pattern)]
            part.copy_(pattern[: len(part)])
        groups = layout.groups_of(weights)
        for group in groups.values():
            group.a.mul_(group.a.shape[-1] ** -0.5)
        scalings = {key: (ADAPTER_SHARE * rank**-0.5,) * len(group.projections) for key, group in groups.items()}
        return LoadedAdapter(str(kind), scalings, weights.nbytes, layout, weights, groups)
