"""Rounds a matrix to FP8 so that its products change least, as GPTQ does (https://arxiv.org/abs/2210.17323).

The columns of a matrix W [out, in] are rounded one after the other. The error that rounding makes in a column is made
good by the columns that are not rounded yet, as far as their inputs are alike. The matrix X^T X [in, in] of the inputs'
products tells how far. Scales of rows are chosen before. Knows no model and no files.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

FLOAT8 = torch.float8_e4m3fn
LARGEST = torch.finfo(FLOAT8).max
NUM_SCALES = 8
"""The number of scales that are tried for each row, evenly over a factor of two: beyond that FP8 repeats itself."""

DAMPING = 0.01
"""The number that is added to the diagonal of the inputs' products, as a share of the diagonal's mean. With less,
correlations that the text has by chance count, and the matrix may have no Cholesky decomposition."""

COLUMNS_AT_ONCE = 64
"""The number of columns whose errors reach all later columns by one product."""


class NoDecomposition(ArithmeticError):
    """The error for inputs whose products have no Cholesky decomposition."""


class Float8Rows(NamedTuple):
    """A matrix in FP8 with a scale for each row."""

    numbers: Tensor  # [out, in] float8_e4m3fn
    scales: Tensor  # [out, 1] float32

    def float(self) -> Tensor:
        """Return the numbers that the matrix stands for, [out, in] in float32."""
        return self.numbers.float() * self.scales

    def part(self, first: int, last: int) -> Float8Rows:
        """Return the rows from first up to last."""
        return Float8Rows(self.numbers.view(torch.uint8)[first:last].view(FLOAT8), self.scales[first:last])


def rounded_rows(weight: Tensor, importance: Tensor | None) -> Float8Rows:
    """Round a matrix [out, in] in float32 to the nearest numbers in FP8, by the best scale of each row.

    importance [in]: the factor of the squared errors of each column; None: all are alike.
    """
    counts = torch.ones(weight.shape[1]) if importance is None else importance
    least = (weight.abs().amax(1, keepdim=True) / LARGEST).clamp(min=torch.finfo(torch.float32).tiny)
    best = Float8Rows(torch.empty(weight.shape, dtype=FLOAT8), least)
    errors = torch.full_like(least, torch.inf)
    for step in range(NUM_SCALES):
        scales = least * 2 ** (step / NUM_SCALES)
        numbers = (weight / scales).to(FLOAT8)
        found = ((numbers.float() * scales - weight).square() @ counts)[:, None]
        is_better = found < errors
        errors = torch.where(is_better, found, errors)
        # There is no `where` for numbers in FP8.
        chosen = torch.where(is_better, numbers.view(torch.uint8), best.numbers.view(torch.uint8))
        best = Float8Rows(chosen.view(FLOAT8), torch.where(is_better, scales, best.scales))
    return best


def compensated_rows(weight: Tensor, products: Tensor, missing: Tensor | None = None) -> Float8Rows:
    """Round a matrix [out, in] in float32 to FP8, each column's error made good by the columns that come after it.

    products [in, in]: X^T X of the inputs X that the rounded matrix will meet. missing [in, in]: (P - X)^T X, where P
    are the inputs that the matrix itself meets, for example because layers before are rounded too; None: P is X.
    Columns whose inputs are largest come first. The result is of the matrix whose products with X are nearest to those
    of W with P.

    Raises NoDecomposition: when inputs are not finite, or so much alike that the damping does not help.
    """
    damped = products + DAMPING * products.diagonal().mean().clamp(min=torch.finfo(torch.float32).tiny) * torch.eye(
        len(products)
    )
    order = damped.diagonal().argsort(descending=True)
    damped = damped[order][:, order]
    factor = _cholesky(damped)
    columns = weight[:, order]
    if missing is not None:
        columns = columns + torch.cholesky_solve((columns @ missing[order][:, order]).T, factor).T
        if not columns.isfinite().all():
            raise NoDecomposition("the missing products are not finite")
    scales = rounded_rows(columns, damped.diagonal()).scales
    upper = _cholesky(torch.cholesky_inverse(factor), upper=True)
    rounded = torch.empty(columns.T.shape)
    left, of_row = columns.T.contiguous(), scales[:, 0]
    for first in range(0, len(left), COLUMNS_AT_ONCE):
        last = min(first + COLUMNS_AT_ONCE, len(left))
        part, errors = left[first:last], torch.empty_like(left[first:last])
        for place, column in enumerate(part):
            at = first + place
            rounded[at] = (column / of_row).clamp(-LARGEST, LARGEST).to(FLOAT8).float()
            errors[place] = (column - rounded[at] * of_row) / upper[at, at]
            part[place + 1 :].addr_(upper[at, at + 1 : last], errors[place], alpha=-1)
        left[last:].addmm_(upper[first:last, last:].T, errors, alpha=-1)
    numbers = torch.empty_like(columns)
    numbers[:, order] = rounded.T
    return Float8Rows(numbers.to(FLOAT8), scales)


def _cholesky(matrix: Tensor, *, upper: bool = False) -> Tensor:
    """Return a Cholesky decomposition. upper: True: the upper triangle of it; False: the lower one.

    Raises NoDecomposition: when the matrix has none.
    """
    factor: Tensor
    factor, fault = torch.linalg.cholesky_ex(matrix, upper=upper)
    # Infinities may be there: those of the inverse for inputs that are all zero, where no error counts.
    if fault.item() or factor.isnan().any():
        raise NoDecomposition("the products of inputs have no Cholesky decomposition")
    return factor
