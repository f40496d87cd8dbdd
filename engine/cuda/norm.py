"""A norm's weight, multiplied by Triton (`engine.models.weights.Norm`)."""

from __future__ import annotations

from torch import Tensor

from kernels.gpu.norm import rms_norm


class TritonNorm:
    """A root-mean-square norm, computed by Triton. weight [H]."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        self.weight = weight
        self.eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        """Return the norm of x [..., H]."""
        return rms_norm(x, self.weight, self.eps)
