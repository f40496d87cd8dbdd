"""Choosing the next token of many sequences from their logits on a GPU: everything of a row in one program.

Semantics, the rule and the draws of `kernels.sampling`, for one row with temperature t > 0:
    p = softmax(logits / t)
    take the top_k most likely tokens, of these the most likely ones until top_p of their mass is reached, at least one,
    and every token as likely as the last one taken; of these keep the ones with p >= min_p * max(p)
    token = the first whose cumulative kept probability exceeds u times the whole, in the vocabulary's order,
    u = `kernels.sampling.uniform`(seed, position)
    with t = 0, the first of the most likely tokens
    -1 if the largest logit is NaN or infinite

The reference is `kernels.sampling.kept_probabilities_reference` with `uniform`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.launch import Arguments, Launch


class SamplingRows(NamedTuple):
    """The sampling parameters of N rows."""

    temperature: Tensor
    """[N] fp32, 0: the most likely token."""
    top_k: Tensor
    """[N] int32, 0 is off."""
    top_p: Tensor
    """[N] fp32 in [0, 1], 1 is off."""
    min_p: Tensor
    """[N] fp32 in [0, 1], 0 is off."""
    seeds: Tensor
    """[N] int64, the seed of each row's draws."""
    positions: Tensor
    """[N] int64, the position of each row's token, by which draws differ."""


BLOCK = 4096  # logits at a time: each costs what sums over all threads cost
SEARCH_BLOCK = 2048  # where each is compared with
PIVOTS = 8  # in one pass over a row
BEST = 6  # of each of SEARCH_BLOCK lanes
STAGES = 3  # blocks on their way from memory


@triton.jit
def _key(logit):
    """Return an int32 for an fp32 logit; the integers are ordered as the logits are."""
    bits = logit.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _weights(row, at, vocab_size, largest, temperature, lowest_key, min_weight):
    """Return e^((logit - largest) / temperature) of BLOCK tokens, 0 for those that are not kept."""
    logit = tl.load(row + at, mask=at < vocab_size, other=-float("inf"))
    weight = tl.exp((logit - largest) / temperature)
    return tl.where((_key(logit) >= lowest_key) & (weight >= min_weight), weight, 0.0)


@triton.jit
def _find_best(best, row, vocab_size, BLOCK: tl.constexpr):
    """Write the six largest logits of each lane to best [BEST, BLOCK], and return the largest sixth.

    A lane sees one place of every block; where it sees fewer than six, the rest is -inf. Every logit above the largest
    sixth is in best.
    """
    first = tl.full((BLOCK,), -float("inf"), tl.float32)
    second = first
    third = first
    fourth = first
    fifth = first
    sixth = first
    for begin in range(0, vocab_size, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        logit = tl.load(row + at, mask=at < vocab_size, other=-float("inf"))
        first, beaten = _ranked(first, logit)
        second, beaten = _ranked(second, beaten)
        third, beaten = _ranked(third, beaten)
        fourth, beaten = _ranked(fourth, beaten)
        fifth, beaten = _ranked(fifth, beaten)
        sixth = tl.maximum(sixth, beaten)
    lane = tl.arange(0, BLOCK)
    tl.store(best + lane, first)
    tl.store(best + BLOCK + lane, second)
    tl.store(best + 2 * BLOCK + lane, third)
    tl.store(best + 3 * BLOCK + lane, fourth)
    tl.store(best + 4 * BLOCK + lane, fifth)
    tl.store(best + 5 * BLOCK + lane, sixth)
    tl.debug_barrier()  # other threads read it
    return tl.max(sixth, 0)


@triton.jit
def _ranked(a, b):
    return tl.maximum(a, b), tl.minimum(a, b)


@triton.jit
def _highest_key_reaching(
    row,
    vocab_size,
    largest,
    temperature,
    low,
    high,
    target,
    COUNTING: tl.constexpr,
    BLOCK: tl.constexpr,
    PIVOTS: tl.constexpr,
):
    """Return the highest key in [low, high] such that the tokens from this key upwards weigh at least target.

    With COUNTING the number of these tokens is at least target instead. Each pass over the row splits the interval into
    PIVOTS + 1 parts. low is taken to reach the target.
    """
    while low < high:
        step = (high - low) // (PIVOTS + 1) + 1
        pivots = (low + step * (1 + tl.arange(0, PIVOTS))).to(tl.int32)
        reached = tl.zeros((BLOCK, PIVOTS), tl.float32)
        for begin in range(0, vocab_size, BLOCK):
            at = begin + tl.arange(0, BLOCK)
            logit = tl.load(row + at, mask=at < vocab_size, other=-float("inf"))
            weight = tl.exp((logit - largest) / temperature)
            if COUNTING:
                weight = tl.where(at < vocab_size, 1.0, 0.0)
            reached += tl.where(_key(logit)[:, None] >= pivots, weight[:, None], 0.0)
        passed = tl.sum((tl.sum(reached, 0) >= target).to(tl.int64), 0)
        low = tl.minimum(low + step * passed, high)  # a target of 0 is reached above high too
        high = tl.minimum(high, low + step - 1)
    return low


@triton.jit
def _sums(row, vocab_size, largest, temperature, key, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    """Return the weight and the number of the tokens above key, and the number of tokens at key."""
    weights = tl.zeros((BLOCK,), tl.float32)
    num_above = tl.zeros((BLOCK,), tl.int32)
    num_at = tl.zeros((BLOCK,), tl.int32)
    for begin in tl.range(0, vocab_size, BLOCK, num_stages=STAGES):
        at = begin + tl.arange(0, BLOCK)
        logit = tl.load(row + at, mask=at < vocab_size, other=-float("inf"))
        above = (_key(logit) > key) & (at < vocab_size)
        weights += tl.where(above, tl.exp((logit - largest) / temperature), 0.0)
        num_above += above.to(tl.int32)
        num_at += ((_key(logit) == key) & (at < vocab_size)).to(tl.int32)
    return tl.sum(weights, 0), tl.sum(num_above, 0), tl.sum(num_at, 0)


@triton.jit
def _uniform(seed, position):
    """Return `kernels.sampling.uniform` of seed and position: SplitMix64 over both, in [0, 1)."""
    z = seed.to(tl.uint64, bitcast=True) * 0x9E3779B97F4A7C15
    z += (position + 1).to(tl.uint64, bitcast=True) * 0xD1B54A32D192ED03
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return ((z ^ (z >> 31)) >> 11).to(tl.float64) * 1.1102230246251565e-16


@triton.jit
def _draw(row, vocab_size, largest, temperature, lowest_key, min_weight, u, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    """Return the first token whose cumulative weight exceeds u times the whole.

    First the token's block is found, then the token's place in the block.
    """
    whole = tl.zeros((), tl.float64)
    for begin in tl.range(0, vocab_size, BLOCK, num_stages=STAGES):
        at = begin + tl.arange(0, BLOCK)
        weights = _weights(row, at, vocab_size, largest, temperature, lowest_key, min_weight)
        whole += tl.sum(weights, 0).to(tl.float64)
    target = u * whole
    through = tl.zeros((), tl.float64)  # of the blocks so far
    before = tl.zeros((), tl.float64)  # of the blocks before the chosen one
    block = 0
    for begin in tl.range(0, vocab_size, BLOCK, num_stages=STAGES):
        at = begin + tl.arange(0, BLOCK)
        weights = _weights(row, at, vocab_size, largest, temperature, lowest_key, min_weight)
        weight = tl.sum(weights, 0).to(tl.float64)
        candidate = (through <= target) & (weight > 0.0)  # the last one is it, should rounding leave target above all
        block = tl.where(candidate, begin, block)
        before = tl.where(candidate, through, before)
        through += weight
    at = block + tl.arange(0, BLOCK)
    weights = _weights(row, at, vocab_size, largest, temperature, lowest_key, min_weight)
    above = (tl.cumsum(weights, 0).to(tl.float64) + before > target) & (weights > 0.0)
    last = tl.max(tl.where(weights > 0.0, at, 0), 0)
    return tl.minimum(tl.min(tl.where(above, at, vocab_size), 0), last)


@triton.jit(
    do_not_specialize_on_alignment=["token_ids", "temperatures", "top_ks", "top_ps", "min_ps", "seeds", "positions"]
)
def _sample_kernel(
    token_ids,
    logits,
    bests,
    stride,
    vocab_size,
    temperatures,
    top_ks,
    top_ps,
    min_ps,
    seeds,
    positions,
    BLOCK: tl.constexpr,
    SEARCH_BLOCK: tl.constexpr,
    PIVOTS: tl.constexpr,
    BEST: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Choose the token of one row.

    The row's threshold is searched among the best logits of the lanes, and among all logits where the best do not
    decide it.
    """
    n = tl.program_id(0)
    row = logits + n.to(tl.int64) * stride
    most = tl.full((BLOCK,), -float("inf"), tl.float32)
    least = tl.full((BLOCK,), float("inf"), tl.float32)  # of those that are not banned
    where_most = tl.zeros((BLOCK,), tl.int32)
    no_number = tl.zeros((BLOCK,), tl.int32)
    for begin in tl.range(0, vocab_size, BLOCK, num_stages=STAGES):
        at = begin + tl.arange(0, BLOCK)
        logit = tl.load(row + at, mask=at < vocab_size, other=-float("inf"))
        no_number |= (logit != logit).to(tl.int32)
        where_most = tl.where(logit > most, at, where_most)
        most = tl.where(logit > most, logit, most)
        least = tl.minimum(least, tl.where(logit > -float("inf"), logit, float("inf")))
    largest = tl.max(most, 0)
    smallest = tl.min(least, 0)
    is_number = tl.max(no_number, 0) == 0
    token = tl.min(tl.where(most == largest, where_most, vocab_size), 0)
    if (not is_number) | (largest == -float("inf")) | (largest == float("inf")):
        tl.store(token_ids + n, -1)
        return
    temperature = tl.load(temperatures + n)
    if temperature > 0.0:
        top_k = tl.load(top_ks + n)
        top_p = tl.load(top_ps + n)
        high = _key(largest).to(tl.int64)
        lowest = _key(smallest).to(tl.int64)
        some = bests + n.to(tl.int64) * BEST * SEARCH_BLOCK
        hidden = high
        if (top_k > 0) | (top_p < 1.0):
            hidden = _key(_find_best(some, row, vocab_size, SEARCH_BLOCK)).to(tl.int64)
        if top_k > 0:
            lowest = _highest_key_reaching(
                some, BEST * SEARCH_BLOCK, largest, temperature, lowest, high, top_k, True, SEARCH_BLOCK, PIVOTS
            )
            if lowest <= hidden:
                lowest = _highest_key_reaching(
                    row, vocab_size, largest, temperature, lowest, high, top_k, True, SEARCH_BLOCK, PIVOTS
                )
        if top_p < 1.0:
            whole, num_above, num_at = _sums(row, vocab_size, largest, temperature, lowest, BLOCK, STAGES)
            if top_k > 0:  # takes some of the tokens that are as likely as the last one
                num_at = tl.minimum(num_at, top_k - num_above)
            whole += num_at * tl.exp((_logit(lowest) - largest) / temperature)
            target = top_p * whole
            lowest = _highest_key_reaching(
                some, BEST * SEARCH_BLOCK, largest, temperature, lowest, high, target, False, SEARCH_BLOCK, PIVOTS
            )
            if lowest <= hidden:
                lowest = _highest_key_reaching(
                    row, vocab_size, largest, temperature, lowest, high, target, False, SEARCH_BLOCK, PIVOTS
                )
        u = _uniform(tl.load(seeds + n), tl.load(positions + n))
        token = _draw(row, vocab_size, largest, temperature, lowest, tl.load(min_ps + n), u, BLOCK, STAGES)
    tl.store(token_ids + n, token)


@triton.jit
def _logit(key):
    """Return the fp32 logit of which `_key` made this key."""
    bits = key.to(tl.int32)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


def sample_launch(token_ids: Tensor, logits: Tensor, rows: SamplingRows, bests: Tensor) -> Launch:
    """Return the launch of `sample`. bests: [N, BEST * SEARCH_BLOCK] fp32, overwritten."""
    num_rows, vocab_size = logits.shape
    arguments: Arguments = {
        "token_ids": token_ids,
        "logits": logits,
        "bests": bests,
        "stride": logits.stride(0),
        "vocab_size": vocab_size,
        "temperatures": rows.temperature,
        "top_ks": rows.top_k,
        "top_ps": rows.top_p,
        "min_ps": rows.min_p,
        "seeds": rows.seeds,
        "positions": rows.positions,
        "BLOCK": BLOCK,
        "SEARCH_BLOCK": SEARCH_BLOCK,
        "PIVOTS": PIVOTS,
        "BEST": BEST,
        "STAGES": STAGES,
    }
    return Launch(_sample_kernel, (num_rows,), arguments, num_warps=16)


def sample(logits: Tensor, rows: SamplingRows) -> Tensor:
    """Choose a token for each row of logits; return token ids [N] int64, -1 where there is none.

    logits [N, V] fp32, elements of a row contiguous, not changed.
    """
    token_ids = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    bests = torch.empty(len(logits), BEST * SEARCH_BLOCK, dtype=torch.float32, device=logits.device)
    sample_launch(token_ids, logits, rows, bests).run()
    return token_ids
