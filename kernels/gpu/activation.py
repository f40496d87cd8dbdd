"""The gated activation of the Llama family (Shazeer, 2020: SwiGLU) on a GPU.

Semantics:
    out[n, i] = silu(gate_up[n, i]) * gate_up[n, I + i]      0 <= i < I, in fp32, rounded once
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.launch import Arguments, Launch, blocks_of

BLOCK = 1024


@triton.jit
def _silu_mul_kernel(out, gate_up, width, BLOCK: tl.constexpr):
    """BLOCK columns of one row."""
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = i < width
    gate = tl.load(gate_up + row * 2 * width + i, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * width + width + i, mask=inside, other=0.0).to(tl.float32)
    result = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + row * width + i, result.to(out.dtype.element_ty), mask=inside)


def silu_mul_launch(out: Tensor, gate_up: Tensor) -> Launch:
    num_rows, width = out.shape
    arguments: Arguments = {"out": out, "gate_up": gate_up, "width": width, "BLOCK": BLOCK}
    return Launch(_silu_mul_kernel, (num_rows, blocks_of(width, BLOCK)), arguments)


def silu_mul(gate_up: Tensor) -> Tensor:
    """gate_up [N, 2I], contiguous -> [N, I] in its dtype; unlike the CPU's, its argument stays as it is."""
    num_rows, width = gate_up.shape
    out = torch.empty(num_rows, width // 2, dtype=gate_up.dtype, device=gate_up.device)
    silu_mul_launch(out, gate_up).run()
    return out
