"""Linear attention with decay: each head has a state of keys by values that every token shrinks, adds to and reads.

Semantics, for the tokens t of one sequence and each value head, with state S [K, V]:
    decayed sum:      S = exp(decay[t]) S + k[t] v[t]^T;                      out[t] = S^T q[t]
    gated delta rule: S = exp(decay[t]) S
                      S = S + k[t] (beta[t] (v[t] - S^T k[t]))^T;             out[t] = S^T q[t]
    causal conv:      out[t] = silu(bias + sum_j weight[j] x[t - W + 1 + j])  per channel; x before the first: the tail

The decayed sum is that of Mamba-2 (Dao and Gu, 2024, arXiv 2405.21060), the other one that of gated delta networks
(Yang et al., 2024, arXiv 2412.06464). The value heads are divided evenly among the key heads: neighbours share a key
head. All of it is computed in fp32. `step` functions compute one token of many sequences, the others many tokens of one
sequence in parts of CHUNK: within a part by products of matrices, from part to part by the state.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad, silu

CHUNK = 64
"""Tokens that are computed together. With more, their products with each other outweigh those with the state."""


def decayed_sum_reference(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Return the decayed sum as `decayed_sum` does, by the definition, token by token."""
    q, k = (_by_value_head(each, v) for each in (q, k))
    state, out = state.clone(), []
    for t in range(len(v)):
        state = state * decay[t].exp()[:, None, None] + k[t][..., None] * v[t][:, None]
        out.append(torch.einsum("hkv,hk->hv", state, q[t]))
    return torch.stack(out), state


def gated_delta_reference(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute as `gated_delta`, by the definition, token by token."""
    q, k = (_by_value_head(each, v) for each in (q, k))
    state, out = state.clone(), []
    for t in range(len(v)):
        state = state * decay[t].exp()[:, None, None]
        wrong = v[t] - torch.einsum("hkv,hk->hv", state, k[t])
        state = state + k[t][..., None] * (beta[t][:, None] * wrong)[:, None]
        out.append(torch.einsum("hkv,hk->hv", state, q[t]))
    return torch.stack(out), state


def causal_conv_reference(x: Tensor, tail: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return the convolution as `causal_conv` does, by the definition."""
    full, width = torch.cat((tail, x)), len(weight)
    out = torch.stack([(full[t : t + width] * weight).sum(0) for t in range(len(x))])
    return silu(out if bias is None else out + bias)


def decayed_sum(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Return the outputs [T, H, V] and the last state [H, K, V] of one sequence's tokens.

    q, k [T, key heads, K], v [T, H, V], decay [T, H], which is nowhere above 0, and the state before, all in fp32.
    """
    num_tokens = len(v)
    q, k, v, cumulated = _in_chunks(q, k, v, decay)
    out, state = _scan(q, k, cumulated, (q @ k.mT) * _pairwise(cumulated), state, v, None)
    return out[:num_tokens], state


def gated_delta(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Return the outputs [T, H, V] and the last state [H, K, V] of one sequence's tokens.

    Inputs are as those of `decayed_sum`, with beta [T, H]. The additions of the tokens of a part solve a system of
    equations, which is triangular, since a token sees what those before it have added (section 3.3 of the paper).
    """
    weighted_k = _by_value_head(k, v) * beta[..., None]
    weighted_k, weighted_v = (_chunked(each) for each in (weighted_k, v * beta[..., None]))
    q, k, _, cumulated = _in_chunks(q, k, v, decay)
    factors = _pairwise(cumulated)
    system = (weighted_k @ k.mT) * factors
    decayed_k = weighted_k * cumulated.exp()[..., None]
    added = torch.linalg.solve_triangular(system, weighted_v, upper=False, unitriangular=True)
    read = torch.linalg.solve_triangular(system, decayed_k, upper=False, unitriangular=True)
    out, state = _scan(q, k, cumulated, (q @ k.mT) * factors, state, added, read)
    return out[: len(v)], state


def decayed_sum_step(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, states: Tensor) -> Tensor:
    """Return the output [N, H, V] of one token of each sequence; states [N, H, K, V] are updated in place.

    q, k [N, key heads, K], v [N, H, V], decay [N, H], all in fp32.
    """
    q, k = (_by_value_head(each, v) for each in (q, k))
    states.mul_(decay.exp()[..., None, None]).addcmul_(k[..., None], v[:, :, None])
    return (q[:, :, None] @ states).squeeze(2)


def gated_delta_step(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, states: Tensor) -> Tensor:
    """Return the output [N, H, V] of one token of each sequence; states [N, H, K, V] are updated in place.

    Inputs are as those of `decayed_sum_step`, with beta [N, H].
    """
    q, k = (_by_value_head(each, v) for each in (q, k))
    states.mul_(decay.exp()[..., None, None])
    wrong = v - (k[:, :, None] @ states).squeeze(2)
    states.addcmul_(k[..., None], (wrong * beta[..., None])[:, :, None])
    return (q[:, :, None] @ states).squeeze(2)


def causal_conv(x: Tensor, tail: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return the convolution [..., T, C] of x [..., T, C] and the W - 1 rows before it, the tail [..., W - 1, C].

    weight [W, C], bias [C] or None, all in fp32. The next tail is the last W - 1 rows of tail and x.
    """
    full, num_tokens = torch.cat((tail, x), -2), x.shape[-2]
    out = full[..., :num_tokens, :] * weight[0]
    for j in range(1, len(weight)):
        out.addcmul_(full[..., j : j + num_tokens, :], weight[j])
    return silu(out if bias is None else out.add_(bias), inplace=True)


def _by_value_head(x: Tensor, v: Tensor) -> Tensor:
    """Return x [N, key heads, K] for each head of values [N, H, V]."""
    return x if x.shape[1] == v.shape[1] else x.repeat_interleave(v.shape[1] // x.shape[1], 1)


def _chunked(x: Tensor) -> Tensor:
    """Return x [T, H, ...] by head and part, [H, parts, CHUNK, ...]; tokens that are missing are zeros."""
    size = min(CHUNK, len(x))
    padded = pad(x.transpose(0, 1), [0, 0] * (x.dim() - 2) + [0, -len(x) % size])
    return padded.reshape(x.shape[1], -1, size, *x.shape[2:])


def _in_chunks(q: Tensor, k: Tensor, v: Tensor, decay: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return queries, keys and values [H, parts, CHUNK, ...], and the decays from each part's beginning."""
    q, k = (_by_value_head(each, v) for each in (q, k))
    return _chunked(q), _chunked(k), _chunked(v), _chunked(decay).cumsum(-1)


def _pairwise(cumulated: Tensor) -> Tensor:
    """Return the factors [..., CHUNK, CHUNK] by which what token j adds has shrunk at token i: 0 where j > i."""
    size = cumulated.shape[-1]
    later = torch.ones(size, size, dtype=torch.bool, device=cumulated.device).triu(1)
    between = cumulated[..., :, None] - cumulated[..., None, :]
    return between.masked_fill_(later, -torch.inf).exp_()  # masked before, since exp of the others may overflow


def _scan(
    q: Tensor, k: Tensor, cumulated: Tensor, scores: Tensor, state: Tensor, added: Tensor, read: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the outputs [parts * CHUNK, H, V] and the last state, going from part to part.

    added: what each token adds to the state, [H, parts, CHUNK, V], before read @ state is subtracted.
    read: the factors of the state, [H, parts, CHUNK, K]; None: nothing is subtracted.
    """
    q = q * cumulated.exp()[..., None]
    k = k * (cumulated[..., -1:] - cumulated).exp()[..., None]
    shrinks = cumulated[..., -1].exp()[..., None, None]
    out = torch.empty_like(added)
    for part in range(q.shape[1]):
        new = added[:, part] if read is None else added[:, part] - read[:, part] @ state
        out[:, part] = q[:, part] @ state + scores[:, part] @ new
        state = state * shrinks[:, part] + k[:, part].mT @ new
    return out.flatten(1, 2).transpose(0, 1), state
