"""Rotary position embedding (Su et al., 2021), in the rotate-half layout of the Llama family's checkpoints.

Semantics, for a head vector x of even size D at one position:
    out[i]       = x[i]       * cos[i] - x[i + D/2] * sin[i]        0 <= i < D/2
    out[i + D/2] = x[i + D/2] * cos[i] + x[i]       * sin[i]
"""

from __future__ import annotations

import torch
from torch import Tensor


def rope_reference(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [N, H, D], cos and sin [N, D/2] -> [N, H, D] in x's dtype, by the definition, in fp32."""
    half = x.shape[-1] // 2
    first, second = x[..., :half].float(), x[..., half:].float()
    c, s = cos.float()[:, None], sin.float()[:, None]
    return torch.cat((first * c - second * s, second * c + first * s), -1).to(x.dtype)


def rope_(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x [N, H, D] in place by cos and sin [N, 1, D/2] of any float dtype; x may be a strided view. Returns x."""
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    rotated_first = torch.addcmul(first * cos, second, sin, value=-1)
    rotated_second = torch.addcmul(second * cos, first, sin)
    first.copy_(rotated_first)
    second.copy_(rotated_second)
    return x
