"""The angles of rotary position embedding for a model: plain, linearly scaled, or Llama 3's scaling by frequency."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from engine.config import RopeParameters


def inverse_frequencies(rope: RopeParameters, head_dim: int) -> Tensor:
    """[head_dim / 2] fp32, radians per position."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    plain = 1.0 / rope.theta**exponents
    if rope.kind == "linear":
        return plain / rope.factor
    if rope.kind == "llama3":
        return _llama3(plain, rope)
    return plain


def _llama3(plain: Tensor, rope: RopeParameters) -> Tensor:
    """Long wavelengths are stretched by `factor`, short ones kept, those between interpolated (Llama 3.1)."""
    wavelength = 2 * math.pi / plain
    longest = rope.original_max_position / rope.low_freq_factor
    shortest = rope.original_max_position / rope.high_freq_factor
    share = (rope.original_max_position / wavelength - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    between = (1 - share) * plain / rope.factor + share * plain
    stretched = torch.where(wavelength > longest, plain / rope.factor, plain)
    return torch.where((wavelength <= longest) & (wavelength >= shortest), between, stretched)


class RotaryTable:
    """cos and sin of every position up to max_position, each [max_position, 1, head_dim / 2]."""

    def __init__(
        self, rope: RopeParameters, head_dim: int, max_position: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        angles = torch.outer(torch.arange(max_position).float(), inverse_frequencies(rope, head_dim))[:, None]
        self.cos = angles.cos().to(device, dtype)
        self.sin = angles.sin().to(device, dtype)

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """positions [N] int64 -> cos and sin, each [N, 1, head_dim / 2]."""
        return self.cos[positions], self.sin[positions]
