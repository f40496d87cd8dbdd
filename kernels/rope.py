"""Rotary position embedding (Su et al., 2021), in the rotate-half layout of the Llama family's checkpoints.

Semantics, for a head vector x of even size D at one position:
    out[i]       = x[i]       * cos[i] - x[i + D/2] * sin[i]        0 <= i < D/2
    out[i + D/2] = x[i + D/2] * cos[i] + x[i]       * sin[i]
"""

from __future__ import annotations

import torch
from torch import Tensor


def rope_reference(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x [N, H, D] by cos and sin [N, D/2]; return [N, H, D] in x's dtype, by the definition, in fp32."""
    half = x.shape[-1] // 2
    first, second = x[..., :half].float(), x[..., half:].float()
    c, s = cos.float()[:, None], sin.float()[:, None]
    return torch.cat((first * c - second * s, second * c + first * s), -1).to(x.dtype)


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return x [N, H, D], rotated by cos and sin [N, H or 1, D] in x's dtype, as `wide_tables` makes them.

    Heads whose cos is 1 and sin 0 stay as they are, so that queries, keys and values can go together.
    """
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


def wide_tables(cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Widen cos and sin [..., D/2] to [..., D]: both halves' factors side by side, the first half's sign in sin."""
    return torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
