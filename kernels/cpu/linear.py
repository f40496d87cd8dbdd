"""Multiplying by a frozen matrix of 8-bit integers, on a CPU.

Semantics, with groups g of 32 inputs i:
    wq[o, i] = round(weight[o, i] / ws[o, g])       ws[o, g] = about max_i |weight[o, i]| / 127, in bfloat16: of the
                                                    8 numbers up to there, the one with the least squared error
    xq[n, i] = round(x[n, i] / xs[n, g])            xs[n, g] = max_i |x[n, i]| / 32767, in float32
    linear(x)[n, o]     = sum_g ws[o, g] * xs[n, g] * (sum_{i in g} xq[n, i] * wq[o, i]) + bias[o]
    linear.add(x, y)    = y + linear(x)             rounded once
    embedding(t)[n]     = ws[t, g] * wq[t, :]
The inner sum is of integers; the outer one is in float32, in the order of g. So a row depends on nothing but itself.

Inputs have 16 bits, because with 8 they would be two thirds of the error (`kernels/LOG.md`).
"""

from __future__ import annotations

import weakref

import torch
from torch import Tensor

from kernels.cpu.library import NativeLibrary

FORMAT = "int8, groups of 32, the best of 8 scales, inputs in 16 bits; embedding too; cache in bfloat16"
"""The semantics above in words, and the dtype of the cache beside them. Figures that were measured with another format
are not these kernels' figures."""

GROUP = 32
NUM_SCALES = 8
LEAST = 1e-30
"""The largest number below which all of a group are zeros."""

_DTYPES = {torch.float32: 0, torch.bfloat16: 1}


class Int8Linear:
    """A matrix of 8-bit integers, with the calls of `kernels.linear.Linear`. As many threads compute as PyTorch has.

    weight: [out, in], not kept. bias: [out] or None; afterwards in float32.
    path: one of `library.paths`; None: the fastest.
    matrix: the address of the quantized matrix.
    """

    def __init__(
        self, library: NativeLibrary, weight: Tensor, bias: Tensor | None = None, path: str | None = None
    ) -> None:
        """Quantize the weight.

        Raises ValueError: when the matrix is too large or holds a number that is not finite.
        """
        self.shape = weight.shape
        self._num_outputs, self._num_inputs = weight.shape
        source = weight.detach().float().contiguous()
        self._functions = library.functions
        self.matrix = self._functions.lorikeet_int8_quantize(source.data_ptr(), *weight.shape, torch.get_num_threads())
        if self.matrix is None:
            raise ValueError(f"a matrix of {list(weight.shape)} has numbers that are not finite, or is too large")
        weakref.finalize(self, self._functions.lorikeet_int8_free, self.matrix)
        self.bias = None if bias is None else bias.detach().float().contiguous()
        self._path = -1 if path is None else library.paths.index(path)

    def __call__(self, x: Tensor) -> Tensor:
        """Return the product [N, out] of x [N, in], in the dtype of x."""
        out = torch.empty(x.shape[0], self._num_outputs, dtype=x.dtype)
        return self._multiply(x, out, add=False)

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """Return y [N, out] plus the product of x [N, in], both of the same dtype. y may be overwritten."""
        return self._multiply(x, y, add=True)

    def write(self, x: Tensor, out: Tensor) -> Tensor:
        """Write the product of x [N, in] to out [N, out], both float32, and return out."""
        return self._multiply(x, out, add=False)

    def dequantized(self) -> Tensor:
        """Return the numbers [out, in] float32 that the matrix stands for."""
        out = torch.empty(self._num_outputs, self._num_inputs)
        self._functions.lorikeet_int8_dequantize(self.matrix, out.data_ptr())
        return out

    def rows(self, outputs: Tensor) -> Tensor:
        """Return the numbers [N, in] float32 that the matrix's rows outputs [N] (integers) stand for."""
        numbers = outputs.to(torch.int64).contiguous()
        assert not len(numbers) or 0 <= int(numbers.min()) <= int(numbers.max()) < self._num_outputs
        out = torch.empty(len(numbers), self._num_inputs)
        self._functions.lorikeet_int8_rows(self.matrix, numbers.data_ptr(), len(numbers), out.data_ptr())
        return out

    def _multiply(self, x: Tensor, y: Tensor, *, add: bool) -> Tensor:
        if x.dtype not in _DTYPES:  # float16
            return self._multiply(x.float(), y.float(), add=add).to(x.dtype)
        x, y = _with_dense_rows(x), _with_dense_rows(y)
        assert x.shape == (y.shape[0], self._num_inputs)
        assert y.shape[1] == self._num_outputs
        assert x.dtype == y.dtype
        failed = self._functions.lorikeet_int8_multiply(
            self.matrix,
            x.data_ptr(),
            y.data_ptr(),
            None if self.bias is None else self.bias.data_ptr(),
            x.shape[0],
            x.stride(0),
            y.stride(0),
            _DTYPES[x.dtype],
            add,
            self._path,
            torch.get_num_threads(),
        )
        if failed:
            raise MemoryError(f"no memory to quantize {x.shape[0]} rows")
        return y


class Int8Embedding:
    """The rows of a quantized matrix, with the calls of `kernels.linear.Embedding`. table: the matrix, [V, H]."""

    def __init__(self, table: Int8Linear, dtype: torch.dtype) -> None:
        self.table = table
        self.dtype, self.device = dtype, torch.device("cpu")

    @classmethod
    def of(cls, library: NativeLibrary, table: Tensor, head: object) -> Int8Embedding:
        """Return the embedding of a table [V, H].

        head: the same matrix, which is shared where it is in 8-bit integers.
        """
        return cls(head if isinstance(head, Int8Linear) else Int8Linear(library, table), table.dtype)

    def __call__(self, token_ids: Tensor) -> Tensor:
        """Return the rows [N, H] of token_ids [N] integers."""
        return self.table.rows(token_ids).to(self.dtype)


def int8_linear_reference(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return the product [N, out] float32 of x [N, in], by factors that were quantized.

    weight [out, in]; bias [out] or None.
    """
    out = dequantized_rows(x.float()) @ dequantized_weight(weight.float()).T
    return out if bias is None else out + bias.float()


def dequantized_rows(x: Tensor) -> Tensor:
    """Return the numbers that the quantized x [N, in] float32 stands for, in the same shape."""
    groups = _groups(x)
    bound = groups.abs().amax(-1, keepdim=True)
    scale = bound * torch.tensor(1 / 32767, dtype=torch.float32)
    quantized = (groups * (32767.0 / bound)).round()
    return _whole(torch.where(bound < LEAST, 0.0, quantized * scale), x)


def dequantized_weight(weight: Tensor) -> Tensor:
    """Return the numbers that the quantized weight [out, in] float32 stands for, in the same shape."""
    groups = _groups(weight)
    bound = groups.abs().amax(-1, keepdim=True)
    bits = (bound / 127.0).view(torch.int32)
    best = torch.zeros_like(groups)
    least = torch.full_like(bound, torch.inf, dtype=torch.float64)
    for number in range(NUM_SCALES):
        scale = ((((bits + 0xFFFF) >> 16) - number) << 16).view(torch.float32)
        rounded = (groups / scale).round().clamp(-127, 127) * scale
        lost = (rounded - groups).double().square().sum(-1, keepdim=True)
        best = torch.where(lost < least, rounded, best)
        least = torch.minimum(lost, least)
    return _whole(torch.where(bound < LEAST, 0.0, best), weight)


def _groups(x: Tensor) -> Tensor:
    return torch.nn.functional.pad(x, (0, -x.shape[1] % GROUP)).view(x.shape[0], -1, GROUP)


def _whole(groups: Tensor, x: Tensor) -> Tensor:
    return groups.flatten(1)[:, : x.shape[1]]


def _with_dense_rows(x: Tensor) -> Tensor:
    return x if x.stride(1) == 1 or x.shape[1] == 1 else x.contiguous()
