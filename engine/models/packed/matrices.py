"""Matrices of few bits as files hold them, on any device, and the numbers that they stand for. Knows no file.

Semantics, for output o and input i:
    Float8Matrix    weight[o, i] = numbers[o, i] * scales[o / rows, i / inputs]
    IntMatrix       weight[o, i] = (integers[o, i] - zeros[o, g]) * scales[o, g]     g = groups[i], or i / inputs
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Float8Matrix(NamedTuple):
    """A matrix of numbers in e4m3."""

    numbers: Tensor
    """[out, in] float8_e4m3fn."""
    scales: Tensor
    """[out / rows, in / inputs] float32, both sizes rounded up."""
    rows: int
    """The number of outputs that share a scale, at most all."""
    inputs: int
    """The number of inputs that share a scale, at most all."""

    @property
    def shape(self) -> tuple[int, int]:
        """The matrix's outputs and inputs."""
        return self.numbers.shape[0], self.numbers.shape[1]

    def dequantized(self) -> Tensor:
        """Return the numbers [out, in] float32 that the matrix stands for."""
        out = self.numbers.float()
        of_rows = self.scales.repeat_interleave(self.rows, 0)[: len(out)]
        for block in range(of_rows.shape[1]):
            out[:, block * self.inputs : (block + 1) * self.inputs] *= of_rows[:, block : block + 1]
        return out


class IntMatrix(NamedTuple):
    """A matrix of integers of 4 or 8 bits."""

    integers: Tensor
    """[out, in] uint8."""
    scales: Tensor
    """[out, G] float32, the scale of each group of inputs."""
    zeros: Tensor
    """[out, G] uint8, the zero point of each group, which is subtracted first."""
    bits: int
    inputs: int
    """The number of inputs of a group."""
    groups: Tensor | None = None
    """[in] int64, the group of each input; None: the groups lie in order."""

    @property
    def shape(self) -> tuple[int, int]:
        """The matrix's outputs and inputs."""
        return self.integers.shape[0], self.integers.shape[1]

    def group_of_inputs(self) -> Tensor:
        """Return the group [in] of each input."""
        if self.groups is not None:
            return self.groups
        return torch.arange(self.shape[1], device=self.integers.device) // self.inputs

    def dequantized(self) -> Tensor:
        """Return the numbers [out, in] float32 that the matrix stands for."""
        of_inputs = self.group_of_inputs()
        return (self.integers.float() - self.zeros.float()[:, of_inputs]).mul_(self.scales[:, of_inputs])


PackedMatrix = Float8Matrix | IntMatrix
