"""Measures a step's products beside the rate at which memory is read, with random matrices of the demo's shapes."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch

from engine.cpu.quantization import make_linear
from engine.doctor.report import Choice, Measured

LAYERS = 30
LAYER = ((960, 576), (576, 576), (3072, 576), (576, 1536))
HEAD = (49152, 576)
"""Outputs and inputs of each matrix of a layer, and of the last one."""

READ_BYTES = 512 << 20
"""Bytes that are read: more than caches hold, so that memory is measured."""

MIN_ROUNDS = 3


def measure(choice: Choice, seconds: float) -> Measured:
    """Measure for about so many seconds, half of them each rate.

    choice: the choice on a CPU. The matrices are random: their products take as long as a model's.
    """
    torch.set_num_threads(choice.num_threads)
    rate = _read_rate(seconds / 2)
    dtype: torch.dtype = getattr(torch, choice.dtype)
    quantized = choice.products.startswith("int8")
    make = make_linear("int8" if quantized else "none")
    shapes = [*LAYER * LAYERS, HEAD]
    linears = [make(torch.randn(shape, dtype=dtype), None) for shape in shapes]
    inputs = {size: torch.randn(1, size, dtype=dtype) for _, size in shapes}
    times = _rounds(
        lambda: [linear(inputs[size]) for linear, (_, size) in zip(linears, shapes, strict=True)], seconds / 2
    )
    num_weights = sum(outputs * size for outputs, size in shapes)
    # A group of 32 weights has a scale of two bytes beside it.
    weights_bytes = num_weights * 34 // 32 if quantized else num_weights * dtype.itemsize
    return Measured(
        read_gb_per_s=round(rate / 1e9, 1),
        weights_bytes=weights_bytes,
        floor_ms=round(weights_bytes / rate * 1e3, 2),
        products_ms=round(median(times) * 1e3, 2),
    )


def _read_rate(seconds: float) -> float:
    """Return the highest rate of a round of reading a large tensor, in bytes a second."""
    numbers = torch.ones(READ_BYTES // 4, dtype=torch.float32)
    return READ_BYTES / min(_rounds(lambda: numbers.sum(), seconds))


def _rounds(work: Callable[[], object], seconds: float) -> list[float]:
    """Return the seconds that each round of the work took, of some rounds within about so many seconds."""
    work()
    times: list[float] = []
    end_s = time.perf_counter() + seconds
    while len(times) < MIN_ROUNDS or time.perf_counter() < end_s:
        began_s = time.perf_counter()
        work()
        times.append(time.perf_counter() - began_s)
    return times
