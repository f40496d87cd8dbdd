"""A step's tokens on a GPU, where some are those that the step before chose, which the host does not know yet.

Semantics:
    out[n] = token_ids[n]                       where token_ids[n] >= 0
    out[n] = max(chosen[-1 - token_ids[n]], 0)  elsewhere

Chosen tokens are as `kernels.gpu.sampling` leaves them: negative where logits were NaN or infinite. That text ends
there and its results are dropped, but the step needs some token id, so it gets 0.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.launch import Arguments, Launch, blocks_of

BLOCK = 256


@triton.jit
def _fed_tokens_kernel(out, token_ids, chosen, num_rows, BLOCK: tl.constexpr):
    """Write the tokens of BLOCK rows: pending ones from the step before, all others as they are."""
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = n < num_rows
    token = tl.load(token_ids + n, mask=inside, other=0)
    fed = tl.load(chosen + (-1 - token), mask=token < 0, other=0)
    tl.store(out + n, tl.where(token < 0, tl.maximum(fed, 0), token), mask=inside)


def fed_tokens_launch(out: Tensor, token_ids: Tensor, chosen: Tensor) -> Launch:
    """Return the launch that writes a step's tokens to out [N]; those of the step before come from chosen."""
    num_rows = len(token_ids)
    arguments: Arguments = {
        "out": out,
        "token_ids": token_ids,
        "chosen": chosen,
        "num_rows": num_rows,
        "BLOCK": BLOCK,
    }
    return Launch(_fed_tokens_kernel, (blocks_of(num_rows, BLOCK),), arguments)


def fed_tokens(token_ids: Tensor, chosen: Tensor) -> Tensor:
    """Return the tokens [N] int64, none negative, of token_ids [N] and chosen [M], both int64.

    A negative number in token_ids is -1 minus an index into chosen.
    """
    out = torch.empty_like(token_ids)
    fed_tokens_launch(out, token_ids, chosen).run()
    return out
