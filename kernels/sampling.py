"""Choosing the next token of many sequences from their logits.

Semantics, for one row with temperature t > 0 (t = 0 is `most_likely`):
    p = softmax(logits / t)
    take the top_k most likely tokens, of these the most likely ones until top_p of their mass is reached (Holtzman et
    al., 2020), at least one, and every token as likely as the last one taken; of these keep the ones with
    p >= min_p * max(p)
    token = the first whose cumulative kept probability exceeds u times the whole, in the vocabulary's order

All tokens above one threshold are kept: equally likely tokens need no order among them, and only the most likely few
are ranked. u in [0, 1) comes from the row's own seed and position (`uniform`), so a row's choice never depends on its
neighbors.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

_MASK = (1 << 64) - 1
BLOCK = 128
NUM_RANKED = 256  # tokens that are ranked to find a row's threshold; where they do not decide it, all are
STRIPES = 16


def uniform(seed: int, position: int) -> float:
    """Return the number in [0, 1) of one draw: SplitMix64 (Steele et al., 2014) over the seed and the position."""
    z = (seed * 0x9E3779B97F4A7C15 + (position + 1) * 0xD1B54A32D192ED03) & _MASK
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z = ((z ^ (z >> shift)) * factor) & _MASK
    return ((z ^ (z >> 31)) >> 11) * 2.0**-53


def kept_probabilities_reference(logits: Tensor, temperature: float, top_k: int, top_p: float, min_p: float) -> Tensor:
    """Return the renormalized distribution [V] fp64 of one row of logits [V], by the definition."""
    p = torch.softmax(logits.double() / temperature, -1)
    taken = p.sort(descending=True).values[: top_k if top_k > 0 else None]
    num_taken = int((taken.cumsum(-1) - taken < top_p * taken.sum()).sum())
    taken = taken[: max(num_taken, 1)]
    kept = torch.where((p >= taken[-1]) & (p >= min_p * p.max()), p, 0.0)
    return kept / kept.sum()


def most_likely(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return each row's maximum [N] and its place [N] int64 in logits [N, V]. A NaN anywhere in a row is its maximum.

    The maxima of blocks are computed first, then the position within one: on a CPU a maximum that keeps no position is
    vectorized, and the two together take a tenth of `max` over the row.
    """
    num_rows, vocab_size = logits.shape
    if vocab_size % BLOCK:
        best, token_ids = logits.max(-1)
        return best, token_ids
    blocks = logits.view(num_rows, -1, BLOCK)
    best, block = blocks.amax(-1).max(-1)
    return best, block * BLOCK + _take(blocks, block).argmax(-1)


def sample(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, u: Tensor) -> Tensor:
    """Draw one token per row: logits [N, V] fp32 and the parameters [N] -> ids [N] int64.

    temperature > 0; top_k int64, 0 is off; top_p in [0, 1], 1 is off; min_p in [0, 1], 0 is off; u fp64 in [0, 1).
    """
    p = torch.softmax((logits - logits.amax(-1, keepdim=True)).div_(temperature[:, None]), -1)
    threshold = min_p * p.amax(-1)
    rows = ((top_k > 0) | (top_p < 1)).nonzero()[:, 0]
    if len(rows):
        floors = _truncation_thresholds(_rows(p, rows), top_k[rows], top_p[rows])
        threshold[rows] = torch.maximum(threshold[rows], floors)
    if bool((threshold > 0).any()):
        p.masked_fill_(p < threshold[:, None], 0)
    return _pick(p, u)


def _truncation_thresholds(p: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Return the probability [N] of the last token that top_k and top_p take from p [N, V]; parameters [N].

    If the `NUM_RANKED` likeliest tokens do not decide, all are ranked; that depends on the row alone.
    """
    vocab_size = p.shape[1]
    threshold = torch.empty_like(p[:, 0])
    left = torch.arange(len(p), device=p.device)
    limit = torch.where(top_k > 0, top_k, vocab_size).clamp(max=vocab_size)
    for num_ranked in (min(NUM_RANKED, vocab_size), vocab_size):
        ranked = _largest(_rows(p, left), num_ranked)
        ranked.masked_fill_(torch.arange(num_ranked, device=p.device) >= limit[left, None], 0)
        through = ranked.cumsum(-1)
        whole = torch.where(top_k[left] > 0, through[:, -1], 1.0)
        needed = torch.where(top_p[left] < 1, top_p[left] * whole, torch.inf)
        last = torch.searchsorted(through, needed[:, None])[:, 0].clamp(max=limit[left].clamp(max=num_ranked) - 1)
        threshold[left] = ranked.gather(1, last[:, None])[:, 0]
        decided = (limit[left] <= num_ranked) | ((top_k[left] == 0) & (through[:, -1] >= needed))
        left = left[~decided]
        if not len(left):
            break
    return threshold


def _largest(p: Tensor, count: int) -> Tensor:
    """Return each row's `count` largest values in descending order: p [N, V] -> [N, count].

    The largest values lie in the columns of the largest maxima when a row is folded into stripes, which takes half the
    time of `topk` over the row; NumPy sorts a row in a fifth of the time of `sort` on a CPU.
    """
    num_rows, vocab_size = p.shape
    if count == vocab_size and p.device.type == "cpu":
        return torch.from_numpy(np.sort(p.numpy(), axis=-1)).flip(-1)
    if vocab_size % STRIPES or count * STRIPES >= vocab_size:
        return p.topk(count, -1).values
    stripes = p.view(num_rows, STRIPES, -1)
    columns = stripes.amax(1).topk(count, -1, sorted=False).indices
    candidates = stripes.gather(2, columns[:, None].expand(-1, STRIPES, -1))
    return candidates.flatten(1).topk(count, -1).values


def _pick(mass: Tensor, u: Tensor) -> Tensor:
    """Draw one index of positive mass per row by inverse transform sampling: mass [N, V] >= 0, u [N] -> [N].

    The rows need not be normalized. First a block is drawn by its mass, then an entry of that block, so that only the
    blocks' sums are accumulated.
    """
    num_rows, vocab_size = mass.shape
    whole_blocks = pad(mass, (0, -vocab_size % BLOCK)) if vocab_size % BLOCK else mass
    blocks = whole_blocks.view(num_rows, -1, BLOCK)
    through = blocks.sum(-1).double().cumsum(-1)
    target = u * through[:, -1]
    block = _first_above(through, target)
    before = torch.where(block > 0, through.gather(1, (block - 1).clamp(0)[:, None])[:, 0], 0.0)
    within = _take(blocks, block).double().cumsum(-1)
    return block * BLOCK + _first_above(within, target - before)


def _first_above(through: Tensor, target: Tensor) -> Tensor:
    """Return the index [N] of the first entry of through [N, C], a running sum, above target [N].

    Rounding never passes the last entry that adds anything.
    """
    index = torch.searchsorted(through, target[:, None], right=True)[:, 0]
    last = (through < through[:, -1:]).sum(-1).clamp(max=through.shape[1] - 1)
    return torch.minimum(index, last)


def _rows(p: Tensor, rows: Tensor) -> Tensor:
    """Return p[rows], without a copy where rows, which must be in order, are all rows of p."""
    return p if len(rows) == len(p) else p[rows]


def _take(blocks: Tensor, block: Tensor) -> Tensor:
    """Return one block of each row: blocks [N, B, BLOCK], block [N] -> [N, BLOCK]."""
    return blocks[torch.arange(len(blocks), device=blocks.device), block]
