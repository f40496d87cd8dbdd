"""Multiplying by a frozen matrix of small integers, on a CPU.

Semantics, with groups g of 32 inputs i, and a weight that is ws[o, g] * wq[o, i] + wm[o, g] (`kernels.cpu.matrix`):
    xq[n, i] = round(x[n, i] / xs[n, g])            xs[n, g] = max_i |x[n, i]| / 32767, in float32
    linear(x)[n, o]     = sum_g ws[o, g] * xs[n, g] * (sum_{i in g} xq[n, i] * wq[o, i])
                              + wm[o, g] * (xs[n, g] * sum_{i in g} xq[n, i])  + bias[o]
    linear.add(x, y)    = y + linear(x)             rounded once
    embedding(t)[n]     = ws[t, g] * wq[t, :] + wm[t, g]
The inner sums are of integers; the outer one is in float32, in the order of g. So a row depends on nothing but itself.

Inputs have 16 bits, because with 8 they would be two thirds of the error of 8-bit weights (`kernels/LOG.md`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.cpu.library import NativeLibrary
from kernels.cpu.matrix import LEAST, Format, NativeMatrix, dequantized_weight, groups_of, ungrouped

_DTYPES = {torch.float32: 0, torch.bfloat16: 1}


class NativeLinear:
    """A product with a matrix of small integers, with the calls of `kernels.linear.Linear`.

    path: the path of `library.paths` to use, None for the fastest. As many threads compute as PyTorch has.
    matrix: the address of the native matrix; bias: in float32.
    """

    def __init__(self, weight: NativeMatrix, bias: Tensor | None = None, path: str | None = None) -> None:
        self.weight = weight
        self.matrix = weight.address
        self.shape = weight.shape
        self.bias = None if bias is None else bias.detach().float().contiguous()
        self._num_outputs, self._num_inputs = weight.shape
        self._functions = weight.library.functions
        self._path = -1 if path is None else weight.library.paths.index(path)

    @classmethod
    def of(
        cls,
        library: NativeLibrary,
        kind: Format,
        weight: Tensor,
        bias: Tensor | None = None,
        path: str | None = None,
    ) -> NativeLinear:
        """Return the product with the quantized weight [out, in], which is not kept.

        kind: the format of the quantized weight. bias: [out]; None without one. path: as for the class.

        Raises ValueError: when the matrix is too large or holds a number that is not finite.
        """
        return cls(NativeMatrix.quantized(library, weight, kind), bias, path)

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

    def _multiply(self, x: Tensor, y: Tensor, *, add: bool) -> Tensor:
        if x.dtype not in _DTYPES:  # float16
            return self._multiply(x.float(), y.float(), add=add).to(x.dtype)
        x, y = _with_dense_rows(x), _with_dense_rows(y)
        assert x.shape == (y.shape[0], self._num_inputs)
        assert y.shape[1] == self._num_outputs
        assert x.dtype == y.dtype
        failed = self._functions.lorikeet_matrix_multiply(
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


class NativeEmbedding:
    """The rows of a quantized matrix, with the calls of `kernels.linear.Embedding`. table: this matrix, [V, H]."""

    def __init__(self, table: NativeMatrix, dtype: torch.dtype) -> None:
        self.table = table
        self.dtype, self.device = dtype, torch.device("cpu")

    def __call__(self, token_ids: Tensor) -> Tensor:
        """Return the rows [N, H] of token_ids [N] integers."""
        return self.table.rows(token_ids).to(self.dtype)


def linear_reference(x: Tensor, weight: Tensor, bias: Tensor | None = None, kind: Format = "int8") -> Tensor:
    """Return the product [N, out] float32 of x [N, in] and weight [out, in], each quantized and dequantized before.

    bias [out] or None.
    """
    out = dequantized_rows(x.float()) @ dequantized_weight(weight.float(), kind).T
    return out if bias is None else out + bias.float()


def dequantized_rows(x: Tensor) -> Tensor:
    """Return the numbers that the quantized x [N, in] float32 stands for, in the same shape."""
    groups = groups_of(x)
    bound = groups.abs().amax(-1, keepdim=True)
    scale = bound * torch.tensor(1 / 32767, dtype=torch.float32)
    quantized = (groups * (32767.0 / bound)).round()
    return ungrouped(torch.where(bound < LEAST, 0.0, quantized * scale), x)


def _with_dense_rows(x: Tensor) -> Tensor:
    return x if x.stride(1) == 1 or x.shape[1] == 1 else x.contiguous()
