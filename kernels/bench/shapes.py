"""The model whose shapes are measured, and memory for it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Shape(NamedTuple):
    """The model's sizes, and those of the batches that are measured."""

    hidden: int
    intermediate: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    num_layers: int
    """The number of layers measured together, each with weights of its own."""
    num_copies: int
    """Copies of the memory that other operations go through in a run, so that no cache holds this memory from one run
    to the next."""
    num_adapters: int
    ranks: tuple[int, ...]
    mixed_ranks: tuple[int, int]
    num_decodes: int
    context: int
    """The context of a decode, in tokens."""
    prefill_rows: int
    dtype: torch.dtype
    device: torch.device

    @property
    def groups(self) -> list[tuple[int, tuple[int, ...]]]:
        """The groups of projections that share an input: (in, (out of each projection))."""
        q, kv = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        attention = [(self.hidden, (q, kv, kv)), (q, (self.hidden,))]
        return [*attention, (self.hidden, (self.intermediate,) * 2), (self.intermediate, (self.hidden,))]

    def randn(self, *shape: int) -> Tensor:
        """Return normal random numbers of the shape's dtype on its device."""
        return torch.randn(shape, dtype=self.dtype, device=self.device)


def llama_8b(device: torch.device) -> Shape:
    """Return Llama 3.1 8B in bf16: 32 adapters of rank 16 take 2.7 GB in its 32 layers, many times any cache."""
    return Shape(4096, 14336, 32, 8, 128, 128256, 32, 4, 32, (16, 64), (8, 64), 64, 1024, 2048, torch.bfloat16, device)


def tiny(device: torch.device) -> Shape:
    """Return tiny shapes for a dry run, in fp32, in which Triton's interpreter multiplies correctly."""
    return Shape(64, 96, 4, 2, 16, 300, 1, 1, 2, (4,), (1, 4), 2, 20, 6, torch.float32, device)
