"""A checkpoint's matrices of few bits as the GPU's kernels multiply them (`kernels.gpu.quantized`).

Matrices that share an input become one launch where they have one format. All that the kernels do not multiply, and all
that files hold as it is, is multiplied in the model's dtype. Adapters see inputs that are not rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from engine.models.packed.files import PackedFiles
from engine.models.packed.matrices import Float8Matrix, IntMatrix, PackedMatrix
from engine.models.weights import Product, StackedMatrices
from kernels.gpu.quantized.float8 import STRETCHES, Float8Rows, Float8Weight, float8_linear_, quantize
from kernels.gpu.quantized.int4 import Int4Weight, int4_linear_, packed_int4
from kernels.linear import Linear

Weight = Float8Weight | Int4Weight | Tensor
ALIGNED = 16
"""Outputs and inputs of a matrix in e4m3 are multiples of this number, so that its rows are read in wide pieces."""


class _Part(NamedTuple):
    """The outputs of a matrix that have one format, from the output `first` on."""

    first: int
    size: int
    """The number of outputs."""
    weight: Weight


class PackedLinear:
    """Products with matrices of few bits, side by side, with the calls of `kernels.linear.Linear`."""

    def __init__(self, weights: Sequence[Weight], bias: Tensor | None, *, rounds_inputs: bool) -> None:
        """Set up the product with weights. bias [out]; rounds_inputs: True rounds inputs of FP8 matrices to FP8."""
        self._rounds_inputs = rounds_inputs
        self._parts: list[_Part] = []
        self._size = 0
        for weight in weights:
            self._parts.append(_Part(self._size, weight.shape[0], weight))
            self._size += weight.shape[0]
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply x [N, in] by the matrices, add the bias, and return the result [N, out]."""
        return self._multiply(x, torch.empty(len(x), self._size, dtype=x.dtype, device=x.device), add=False)

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """Return y [N, out] plus the product of x [N, in]. y is overwritten."""
        return self._multiply(x, y, add=True)

    def _multiply(self, x: Tensor, out: Tensor, *, add: bool) -> Tensor:
        rounded: dict[int, Float8Rows] = {}
        for first, size, weight in self._parts:
            columns = out[:, first : first + size]
            bias = None if self._bias is None else self._bias[first : first + size]
            if isinstance(weight, Int4Weight):
                int4_linear_(columns, x, weight, bias, add=add)
            elif isinstance(weight, Float8Weight):
                if weight.stretch not in rounded:
                    rows = quantize(x, weight.stretch) if self._rounds_inputs else Float8Rows(x, None)
                    rounded[weight.stretch] = rows
                float8_linear_(columns, rounded[weight.stretch], weight, bias, add=add)
            elif add:
                columns.add_(torch.nn.functional.linear(x, weight, bias))
            else:
                columns.copy_(torch.nn.functional.linear(x, weight, bias))
        return out


class PackedProducts:
    """Makes the products of a model from its files, one matrix at a time."""

    def __init__(self, files: PackedFiles, device: torch.device, *, rounds_inputs: bool) -> None:
        """Make products on a device. rounds_inputs: inputs of matrices in FP8 are rounded to FP8, too."""
        self._files, self._device, self._rounds_inputs = files, device, rounds_inputs

    def linear(self, matrices: StackedMatrices, bias: Tensor | None) -> Product:
        """Return the product with the matrices.

        bias: [out]; None without one.

        Raises UnsupportedModel: when one is missing or damaged.
        """
        weights: list[Weight] = []
        for which, (name, shape) in enumerate(zip(matrices.names, matrices.shapes, strict=True)):
            found = self._files.matrix(name, shape)
            made = None if found is None else self._kernel_weight(found)
            weights.append(matrices.read([which]) if made is None else made)
        if all(isinstance(weight, Tensor) for weight in weights):
            return Linear(torch.cat([weight for weight in weights if isinstance(weight, Tensor)]), bias)
        return PackedLinear(joined(weights), bias, rounds_inputs=self._rounds_inputs)

    def _kernel_weight(self, matrix: PackedMatrix) -> Weight | None:
        """Return a matrix on the device as a kernel reads it; None where no kernel does."""
        if isinstance(matrix, IntMatrix):
            if matrix.bits != 4:
                return None
            made = packed_int4(matrix.integers, matrix.scales, matrix.zeros, matrix.inputs, matrix.groups)
            return None if made is None else _to_device(made, self._device)
        return self._float8(matrix)

    def _float8(self, matrix: Float8Matrix) -> Float8Weight | None:
        outputs, inputs = matrix.shape
        if inputs % ALIGNED or (matrix.inputs < inputs and matrix.inputs not in STRETCHES):
            return None
        stretch = 0 if matrix.inputs >= inputs else matrix.inputs
        scales, rows = matrix.scales, matrix.rows
        if outputs % rows or rows >= outputs:  # then it may lie above another matrix
            scales, rows = scales.repeat_interleave(rows, 0)[:outputs], 1
        numbers = matrix.numbers.view(torch.uint8).to(self._device).view(torch.float8_e4m3fn)
        return Float8Weight(numbers, scales.contiguous().to(self._device), rows, stretch)


def joined(weights: Sequence[Weight]) -> list[Weight]:
    """Return the matrices in order, with neighbors of one format joined into one matrix."""
    found: list[Weight] = []
    for weight in weights:
        both = _joined(found[-1], weight) if found else None
        if both is None:
            found.append(weight)
        else:
            found[-1] = both
    return found


def _joined(above: Weight, below: Weight) -> Weight | None:
    """Return one matrix of the rows of two; None where their formats differ."""
    if isinstance(above, Int4Weight) and isinstance(below, Int4Weight):
        orders = above.order, below.order
        same_order = orders == (None, None) or (
            orders[0] is not None and orders[1] is not None and torch.equal(orders[0], orders[1])
        )
        if not same_order or (above.inputs, above.scales.dtype) != (below.inputs, below.scales.dtype):
            return None
        return above._replace(
            packed=torch.cat((above.packed, below.packed)),
            scales=torch.cat((above.scales, below.scales), 1),
            zeros=torch.cat((above.zeros, below.zeros), 1),
        )
    if isinstance(above, Float8Weight) and isinstance(below, Float8Weight):
        if above.stretch != below.stretch:
            return None
        if above.rows != below.rows:
            above, below = _by_row(above), _by_row(below)
        numbers = torch.cat((above.numbers.view(torch.uint8), below.numbers.view(torch.uint8)))
        scales = torch.cat((above.scales, below.scales))
        return above._replace(numbers=numbers.view(torch.float8_e4m3fn), scales=scales)
    if isinstance(above, Tensor) and isinstance(below, Tensor):
        return torch.cat((above, below))
    return None


def _by_row(weight: Float8Weight) -> Float8Weight:
    """Return a matrix with a row of scales for each of its outputs instead of for each block of outputs."""
    return weight._replace(scales=weight.scales.repeat_interleave(weight.rows, 0), rows=1)


def _to_device(weight: Int4Weight, device: torch.device) -> Int4Weight:
    return weight._replace(
        packed=weight.packed.to(device),
        scales=weight.scales.to(device),
        zeros=weight.zeros.to(device),
        order=None if weight.order is None else weight.order.to(device),
    )
