"""Measures a step's products beside the rate at which memory is read, with random matrices of the demo's shapes."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import repeat
from statistics import median

import msgspec
import torch
from torch import Tensor

from engine.cpu.quantization import Format, makers
from engine.doctor.report import Choice, Measurement
from engine.models.weights import Product, StackedMatrices
from kernels.cpu.linear import NativeLinear

LAYERS = 30
LAYER = ((960, 576), (576, 576), (3072, 576), (576, 1536))
HEAD = (49152, 576)
"""The numbers of outputs and of inputs of the model's head, the matrix after the last layer."""

READ_BYTES = 512 << 20
"""Bytes that are read: more than caches hold, so that memory is measured."""

MIN_ROUNDS = 3


def measure(choice: Choice, seconds: float) -> Measurement:
    """Measure both rates of a machine, each for about half of the seconds.

    choice: the choice on a CPU. The matrices are random: their products take as long as a model's.
    """
    torch.set_num_threads(choice.num_threads)
    rate = _read_rate(seconds / 2)
    dtype: torch.dtype = getattr(torch, choice.dtype)
    name = choice.products.split()[0]
    quantized = msgspec.convert("none" if name == "torch" else name, Format)
    # The doctor has no file: blocks of most files have 4 bits.
    make = makers("int4" if quantized == "gguf" else quantized, dtype).linear
    shapes = [*LAYER * LAYERS, HEAD]
    linears = [make(_random(shape, dtype), None) for shape in shapes[:-1]]
    linears.append(make(_random(HEAD, dtype, "lm_head.weight"), None))  # in 8-bit integers where layers have 4 bits
    inputs = {size: torch.randn(1, size, dtype=dtype) for _, size in shapes}
    times = _rounds(
        lambda: [linear(inputs[size]) for linear, (_, size) in zip(linears, shapes, strict=True)], seconds / 2
    )
    weights_bytes = sum(map(_num_bytes, linears, shapes, repeat(dtype)))
    return Measurement(
        read_gb_per_s=round(rate / 1e9, 1),
        weights_bytes=weights_bytes,
        floor_ms=round(weights_bytes / rate * 1e3, 2),
        products_ms=round(median(times) * 1e3, 2),
    )


def _num_bytes(linear: Product, shape: tuple[int, int], dtype: torch.dtype) -> int:
    if isinstance(linear, NativeLinear):
        return sum(len(part.memory) for part in linear.weight.parts())
    return shape[0] * shape[1] * dtype.itemsize


def _random(shape: tuple[int, int], dtype: torch.dtype, name: str = "random") -> StackedMatrices:
    """Return a random matrix."""

    def take(name: str, shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, dtype=dtype)

    return StackedMatrices(take, (name,), (shape,))


def _read_rate(seconds: float) -> float:
    """Return the highest rate of a round of reading a large tensor, in bytes a second."""
    numbers = torch.ones(READ_BYTES // 4, dtype=torch.float32)
    return READ_BYTES / min(_rounds(lambda: numbers.sum(), seconds))


def _rounds(work: Callable[[], object], seconds: float) -> list[float]:
    """Repeat the work for about the given seconds; return the seconds that each round took."""
    work()
    times: list[float] = []
    end_s = time.perf_counter() + seconds
    while len(times) < MIN_ROUNDS or time.perf_counter() < end_s:
        began_s = time.perf_counter()
        work()
        times.append(time.perf_counter() - began_s)
    return times
