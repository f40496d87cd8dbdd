"""Attention over a paged cache on a GPU (layout: `kernels.kv_cache`): one interface to two kernels.

Semantics, for a query at position p of a sequence whose slots are s[0..p], group = H / KVH query heads per KV head:
    out[h] = sum_j softmax_j(capped(q[h] . k[h // group, s[j]] * D^-0.5)) * v[h // group, s[j]]
    over max(0, p - window + 1) <= j <= p                                       (Kwon et al., 2023: PagedAttention)
    capped(s) = softcap * tanh(s / softcap), or s where softcap is 0        (Gemma Team, 2024, arXiv 2408.00118)

The newest `query length` positions of every sequence are queries; what lies before them is cached already. If each
sequence has one query, its context is split (`kernels.gpu.decode_attention`); where tiles of queries are listed, they
go through it (`kernels.gpu.prefill_attention`). Neither reads a position that no query of its program may see, so what
a reused block still holds does not matter.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.capped_attention import capped_attention_reference
from kernels.gpu import decode_attention
from kernels.gpu.decode_attention import decode_launches
from kernels.gpu.paged_contexts import PagedContexts
from kernels.gpu.prefill_attention import prefill_launch

__all__ = ["PagedContexts", "paged_attention_", "paged_attention_reference", "workspace_elements"]


def paged_attention_reference(
    q: Tensor,
    cache: Tensor,
    contexts: PagedContexts,
    window: int | None = None,
    softcap: float = 0.0,
    scales: Tensor | None = None,
) -> Tensor:
    """Return the attention [N, H * D] by the definition, one query at a time, in fp32.

    The arguments are those of `paged_attention_`; the result is what it writes into zeros.
    """
    out = torch.zeros_like(q)
    cache = cache if scales is None else cache.float() * scales[..., None]
    starts = contexts.query_starts.tolist()
    for b, length in enumerate(contexts.context_lens.tolist()):
        positions = torch.arange(length, device=q.device)
        blocks = contexts.block_tables[b].long()[positions // contexts.block_size]
        slots = blocks * contexts.block_size + positions % contexts.block_size
        for row in range(starts[b], starts[b + 1]) if length else ():
            position = length - starts[b + 1] + row
            out[row] = capped_attention_reference(q[row], cache, slots, position, window, softcap or None, None)
    return out.flatten(1)


def workspace_elements(
    num_rows: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    max_context_len: int,
    dtype: torch.dtype,
    device: torch.device,
) -> int:
    """Return the number of fp32 elements that `paged_attention_` needs for num_rows sequences of one query.

    Tiles of queries need none.
    """
    shape = num_heads, num_kv_heads, head_dim
    return decode_attention.workspace_elements(num_rows, *shape, max_context_len, dtype, device)


def paged_attention_(
    out: Tensor,
    q: Tensor,
    cache: Tensor,
    contexts: PagedContexts,
    workspace: Tensor,
    window: int | None = None,
    softcap: float = 0.0,
    scales: Tensor | None = None,
) -> None:
    """Attend from the queries q to the cached positions of their sequences, and write the result to out.

    out [N, H, D]: contiguous; q [N, H, D]: heads and elements contiguous, rows of any stride; cache [2, KVH, S, D] of
    q's dtype, or of float8_e4m3fn with scales [2, KVH, S] fp32 of each key and value; workspace: fp32, at least
    `workspace_elements`, with any contents.

    D is 64, 80, 96, 128 or 256, or any multiple of 16 up to that; H / KVH is 1 to 8. Without tiles N = B and row b
    belongs to sequence b; a row with context 0 becomes zeros. With tiles, rows that belong to none stay as they are.

    window: the positions that a query sees, its own included; None: all up to its own. softcap: the bound of scores; 0:
    none.

    Raises ValueError: when the workspace is too small or tiles are not of `tuning.queries_at_once`.
    """
    if contexts.tiles is None:
        for launch in decode_launches(out, q, cache, contexts, workspace, window, softcap, scales=scales):
            launch.run()
    else:
        prefill_launch(out, q, cache, contexts, window, softcap, scales=scales).run()
