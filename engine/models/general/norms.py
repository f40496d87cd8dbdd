"""A model's root-mean-square norms, computed in fewer operations where that gives the same numbers.

Transformers has a class of norms for each family. A norm is replaced only if both give the same for random rows.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from kernels.norm import RmsNorm

NUM_ROWS = 4
ROUNDINGS = 4
"""The largest difference between a norm and its replacement, in units of the dtype's rounding error (eps)."""


class FastNorm(nn.Module):
    """The replacement for one of a model's norms, computed in fewer operations."""

    def __init__(self, norm: RmsNorm) -> None:
        super().__init__()
        self.weight, self.eps = norm.weight, norm.eps
        self._norm = norm

    def forward(self, x: Tensor) -> Tensor:
        """Return x divided by its root mean square over the last dimension, times the weight."""
        return self._norm(x)


def replace_norms(model: nn.Module) -> int:
    """Replace the norms that `kernels.norm` computes, and return their number."""
    count = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            norm = _faster_norm(child)
            if norm is not None:
                setattr(parent, name, FastNorm(norm))
                count += 1
    return count


def _faster_norm(module: nn.Module) -> RmsNorm | None:
    weight = getattr(module, "weight", None)
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if not type(module).__name__.endswith("RMSNorm") or not isinstance(weight, Tensor) or weight.dim() != 1:
        return None
    if type(eps) is not float or len(list(module.parameters())) != 1 or next(module.children(), None) is not None:
        return None
    numbers = torch.Generator().manual_seed(len(weight))
    x = torch.randn(NUM_ROWS, len(weight), generator=numbers).to(weight.device, weight.dtype)
    x[0] *= 1e-3  # so that eps counts
    expected = module(x).float()
    weight = weight.detach()
    for candidate in (weight, weight.float() + 1.0):  # Gemma's weight is an offset from 1
        norm = RmsNorm(candidate, eps)
        if norm(x).dtype != x.dtype:
            continue
        allowed = ROUNDINGS * torch.finfo(weight.dtype).eps * expected.abs().clamp_min(1e-3)
        if bool(((norm(x).float() - expected).abs() <= allowed).all()):
            return norm
    return None
