"""Root-mean-square normalization (Zhang and Sennrich, 2019) on a GPU, alone or after the residual's addition.

Semantics:
    rms_norm:       out[n] = x[n] / sqrt(mean(x[n]^2) + eps) * weight                  in fp32, rounded once
    add_rms_norm_:  residual[n] = residual[n] + x[n]                                   in fp32, rounded once
                    out[n] = rms_norm(residual[n])                                     of what was rounded
"""

from __future__ import annotations

from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., H], rows contiguous; weight [H] -> [..., H] in x's dtype."""
    raise NotImplementedError


def add_rms_norm_(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x, residual [N, H], rows contiguous, of one dtype; weight [H] -> [N, H]; residual is overwritten by the sum."""
    raise NotImplementedError
