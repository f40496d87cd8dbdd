"""Benchmark cases of a layer's other operations (attention, norm, rotation, activation), and of sampling.

A run goes through several copies of its memory, so that no cache holds this memory from one run to the next.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from kernels.activation import silu_mul_reference
from kernels.bench.case import Case, relative_error
from kernels.bench.floors import Work, attention_work, elementwise_work
from kernels.bench.paged import PagedBatch
from kernels.bench.shapes import Shape
from kernels.gpu.activation import silu_mul
from kernels.gpu.norm import add_rms_norm_
from kernels.gpu.rope_kv import rope_and_write_kv_, rope_and_write_kv_reference
from kernels.gpu.sampling import SamplingRows, sample
from kernels.norm import rms_norm_reference
from kernels.sampling import kept_probabilities_reference, uniform


def layer_cases(shape: Shape) -> Iterator[Case]:
    """Yield the cases of attention, norms, rotations, activations and sampling at the sizes of a shape."""
    context, rows = shape.context, shape.prefill_rows
    decodes = [(context, 1)] * shape.num_decodes
    yield _attention(f"decode attention, {shape.num_decodes} x {context}", shape, decodes)
    yield _attention(f"decode attention, {shape.num_decodes} x {4 * context}", shape, [(4 * context, 1)] * len(decodes))
    yield _attention(f"decode attention, 1 x {8 * context}", shape, [(8 * context, 1)])
    yield _attention(f"prefill attention, {rows} tokens", shape, [(rows, rows)])
    yield _attention(f"prefill attention, {4 * rows} tokens", shape, [(4 * rows, 4 * rows)])
    yield _attention(f"prefill attention, 4 chunks over prefixes, {rows} tokens", shape, [(rows, rows // 4)] * 4)
    for num_rows in (shape.num_decodes, rows):
        yield _norm(shape, num_rows)
        yield _rope(shape, num_rows)
        yield _silu(shape, num_rows)
    yield _sampling("greedy", shape, (0.0, 0, 1.0, 0.0))
    yield _sampling("temperature", shape, (1.0, 0, 1.0, 0.0))
    yield _sampling("top-k, top-p", shape, (0.8, 50, 0.95, 0.0))


def _attention(name: str, shape: Shape, lengths: Sequence[tuple[int, int]]) -> Case:
    paged = PagedBatch(shape, lengths)
    work = attention_work(lengths, shape.num_heads, shape.num_kv_heads, shape.head_dim, shape.dtype.itemsize)
    return Case(name, work.times(len(paged.caches)), paged.run, paged.error)


def _call_each(function: Callable[[Tensor], object], copies: Sequence[Tensor]) -> Callable[[], None]:
    def run() -> None:
        for tensor in copies:
            function(tensor)

    return run


def _norm(shape: Shape, num_rows: int) -> Case:
    xs = [shape.randn(num_rows, shape.hidden) for _ in range(shape.num_copies)]
    residual, weight = shape.randn(num_rows, shape.hidden), shape.randn(shape.hidden)

    def error() -> float:
        total = residual.clone()
        ours = add_rms_norm_(xs[0], total, weight, 1e-5)
        return relative_error(ours, rms_norm_reference(total, weight, 1e-5))

    work = elementwise_work(4 * num_rows * shape.hidden, shape.dtype.itemsize)  # two read, two written
    run = _call_each(lambda x: add_rms_norm_(x, residual, weight, 1e-5), xs)
    return Case(f"add and norm, {num_rows} tokens", work.times(shape.num_copies), run, error)


def _rope(shape: Shape, num_rows: int) -> Case:
    kv_heads, head_dim = shape.num_kv_heads, shape.head_dim
    num_all_heads = shape.num_heads + 2 * kv_heads
    qkvs = [shape.randn(num_rows, num_all_heads, head_dim) for _ in range(shape.num_copies)]
    cache = shape.randn(2, kv_heads, num_rows, head_dim)
    angles = torch.randn(num_rows, head_dim // 2, device=shape.device)
    rows = torch.arange(num_rows, device=shape.device)
    arguments = rows, angles.cos(), angles.sin(), cache, rows

    def error() -> float:
        expected = rope_and_write_kv_reference(qkvs[0], *arguments)
        return relative_error(rope_and_write_kv_(qkvs[0].clone(), *arguments), expected)

    work = elementwise_work(2 * num_rows * num_all_heads * head_dim, shape.dtype.itemsize)
    run = _call_each(lambda qkv: rope_and_write_kv_(qkv, *arguments), qkvs)
    return Case(f"rotation and cache write, {num_rows} tokens", work.times(shape.num_copies), run, error)


def _silu(shape: Shape, num_rows: int) -> Case:
    gate_ups = [shape.randn(num_rows, 2 * shape.intermediate) for _ in range(shape.num_copies)]
    work = elementwise_work(3 * num_rows * shape.intermediate, shape.dtype.itemsize)
    return Case(
        f"SiLU-mul, {num_rows} tokens",
        work.times(shape.num_copies),
        _call_each(silu_mul, gate_ups),
        lambda: relative_error(silu_mul(gate_ups[0]), silu_mul_reference(gate_ups[0])),
    )


def _sampling(name: str, shape: Shape, parameters: tuple[float, int, float, float]) -> Case:
    num_rows, device = shape.num_decodes, shape.device
    logits = [3 * torch.randn(num_rows, shape.vocab_size, device=device) for _ in range(shape.num_copies)]
    temperature, top_k, top_p, min_p = (torch.full((num_rows,), value, device=device) for value in parameters)
    seeds = [random.getrandbits(62) for _ in range(num_rows)]
    rows = SamplingRows(
        temperature,
        top_k.int(),
        top_p,
        min_p.float(),
        torch.tensor(seeds, device=device),
        torch.arange(num_rows, device=device),
    )

    def error() -> float:
        """Return 0 if every token holds its draw, up to rounding, else the worst distance."""
        worst = 0.0
        tokens = sample(logits[0], rows).tolist()
        for n in range(0, num_rows, max(1, num_rows // 16)):
            if parameters[0] == 0:
                worst = max(worst, float(logits[0][n].max() - logits[0][n, tokens[n]]))
                continue
            kept = kept_probabilities_reference(logits[0][n], *parameters)
            through, u = kept.cumsum(-1)[tokens[n]], uniform(seeds[n], n)
            worst = max(worst, float(u - through), float(through - kept[tokens[n]] - u))
        return worst

    work = Work(logits[0].nbytes, 0)
    return Case(
        f"sampling, {name}, {num_rows} rows",
        work.times(shape.num_copies),
        _call_each(lambda of_rows: sample(of_rows, rows), logits),
        error,
    )
