"""Choosing the next token of many sequences from their logits.

Semantics, for one row with temperature t > 0 (t = 0 is argmax):
    p = softmax(logits / t)
    keep the top_k most likely tokens, of those the smallest set, most likely first, whose mass reaches top_p
    (Holtzman et al., 2020), of those the ones with p >= min_p * max(p); then renormalise
    token = the first whose cumulative probability exceeds u, in the order of the kept set

u in [0, 1) comes from the row's own seed and position (`uniform`), so a row's choice never depends on its neighbours.
"""

from __future__ import annotations

import torch
from torch import Tensor

_MASK = (1 << 64) - 1
TOP_P_CANDIDATES = 256


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) for one draw: SplitMix64 (Steele et al., 2014) over the seed and the position."""
    z = (seed * 0x9E3779B97F4A7C15 + (position + 1) * 0xD1B54A32D192ED03) & _MASK
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z = ((z ^ (z >> shift)) * factor) & _MASK
    return ((z ^ (z >> 31)) >> 11) * 2.0**-53


def kept_probabilities_reference(logits: Tensor, temperature: float, top_k: int, top_p: float, min_p: float) -> Tensor:
    """The renormalised distribution of one row, by the definition: logits [V] -> [V] fp64."""
    p = torch.softmax(logits.double() / temperature, -1)
    order = torch.argsort(p, descending=True, stable=True)
    ranked = p[order]
    keep = torch.ones_like(ranked, dtype=torch.bool)
    if top_k > 0:
        keep[top_k:] = False
    mass = ranked.masked_fill(~keep, 0)
    keep &= (mass.cumsum(-1) - mass) < top_p * mass.sum()
    keep &= ranked >= min_p * ranked[0]
    kept = torch.zeros_like(p)
    kept[order[keep]] = ranked[keep]
    return kept / kept.sum()


def num_candidates(top_k: int, top_p: float, vocab_size: int) -> int:
    """How many most likely tokens `sample` has to rank for a row; 0: none, it draws in the vocabulary's order.

    It depends on the row alone. Rows of different numbers go to `sample` apart, because the order in which equally
    likely tokens are ranked may depend on how many are.
    """
    if top_k > 0:
        return min(top_k, vocab_size)
    return min(TOP_P_CANDIDATES, vocab_size) if top_p < 1.0 else 0


def sample(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, u: Tensor, candidates: int
) -> Tensor:
    """Rows with temperature > 0 and the same `num_candidates`: logits [N, V] fp32, the parameters [N] -> ids [N]."""
    p = torch.softmax(logits / temperature[:, None], -1)
    if not candidates:
        return _pick(p * (p >= min_p[:, None] * p.amax(-1, keepdim=True)), u)
    ranked, order = torch.topk(p, candidates, -1)
    kept_mass = torch.where(top_k > 0, ranked.sum(-1), 1.0)
    token_ids = _draw_ranked(ranked, order, top_p * kept_mass, min_p, u)
    too_few = (top_k == 0) & (ranked.sum(-1) < top_p)
    if candidates < p.shape[1] and bool(too_few.any()):
        ranked, order = torch.sort(p[too_few], dim=-1, descending=True, stable=True)
        token_ids[too_few] = _draw_ranked(ranked, order, top_p[too_few], min_p[too_few], u[too_few])
    return token_ids


def _draw_ranked(ranked: Tensor, order: Tensor, mass: Tensor, min_p: Tensor, u: Tensor) -> Tensor:
    """Draw from the most likely tokens up to a mass: ranked [N, C] descending, order [N, C] their ids -> ids [N]."""
    before = ranked.cumsum(-1) - ranked
    keep = (before < mass[:, None]) & (ranked >= min_p[:, None] * ranked[:, :1])
    keep[:, 0] = True
    return order.gather(1, _pick(ranked * keep, u)[:, None])[:, 0]


def _pick(mass: Tensor, u: Tensor) -> Tensor:
    """Inverse transform sampling of unnormalised rows: mass [N, C] >= 0, u [N] -> index [N] of positive mass."""
    cumulative = mass.double().cumsum(-1)
    target = u.double()[:, None] * cumulative[:, -1:]
    index = torch.searchsorted(cumulative, target, right=True)
    last_positive = mass.shape[1] - 1 - (mass > 0).flip(-1).int().argmax(-1)
    return torch.minimum(index[:, 0], last_positive)
