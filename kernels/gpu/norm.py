"""Root-mean-square normalization (Zhang and Sennrich, 2019) on a GPU, alone or after the residual's addition.

Semantics:
    rms_norm:       out[n] = x[n] / sqrt(mean(x[n]^2) + eps) * weight                  in fp32, rounded once
    add_rms_norm_:  residual[n] = residual[n] + x[n]                                   in fp32, rounded once
                    out[n] = rms_norm(residual[n])                                     of what was rounded
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.launch import Launch, power_of_two


@triton.jit
def _rms_norm_kernel(
    out, x, x_stride, residual, residual_stride, weight, eps, width, ADD: tl.constexpr, BLOCK: tl.constexpr
):
    """Normalize one row. With ADD, residual is overwritten by its sum with x, and that sum is normalized."""
    row = tl.program_id(0).to(tl.int64)
    h = tl.arange(0, BLOCK)
    inside = h < width
    value = tl.load(x + row * x_stride + h, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        value += tl.load(residual + row * residual_stride + h, mask=inside, other=0.0).to(tl.float32)
        rounded = value.to(residual.dtype.element_ty)
        tl.store(residual + row * residual_stride + h, rounded, mask=inside)
        value = rounded.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(value * value, 0) / width + eps)
    result = value * scale * tl.load(weight + h, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + h, result.to(out.dtype.element_ty), mask=inside)


def norm_launch(out: Tensor, x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> Launch:
    """Return the launch of `rms_norm`, or with a residual that of `add_rms_norm_`."""
    num_rows, width = x.shape
    return Launch(
        _rms_norm_kernel,
        (num_rows,),
        {
            "out": out,
            "x": x,
            "x_stride": x.stride(0),
            "residual": residual,
            "residual_stride": 0 if residual is None else residual.stride(0),
            "weight": weight,
            "eps": eps,
            "width": width,
            "ADD": residual is not None,
            "BLOCK": power_of_two(width),
        },
        num_warps=4 if width <= 2048 else 8,
    )


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return the norm [N, H] of x [N, H] in x's dtype, contiguous.

    x: elements of a row contiguous; weight [H].
    """
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    norm_launch(out, x, None, weight, eps).run()
    return out


def add_rms_norm_(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Add x to residual in place, and return the norm [N, H] of the sum.

    x, residual [N, H] of one dtype, elements of a row contiguous; weight [H].
    """
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    norm_launch(out, x, residual, weight, eps).run()
    return out
