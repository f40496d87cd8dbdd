"""Products with the frozen matrices of experts, and the deltas that adapters add to the products, on a CPU.

One call computes the products of all experts, and one call the deltas of all experts and adapters.

Semantics: `kernels.experts` with the products of `kernels.cpu.linear`, and `kernels.expert_lora`, in float32 between
the inputs and the sum. A row depends on nothing but itself.

The structs of this module are those of `native/experts/adapt.h`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.cpu.decoder import dtype_number
from kernels.cpu.library import NativeLibrary
from kernels.cpu.matrix import NativeMatrix
from kernels.experts import ExpertRows

MOST_PROJECTIONS = 2

_POINTER, _INT64 = ctypes.c_void_p, ctypes.c_int64


class NativeGrouped:
    """Products with a matrix of small integers for each expert, with the call of `kernels.experts.GroupedLinear`.

    matrices: one for each expert, all of one shape [out, in]; bias: [experts, out] or None. path: as for
    `kernels.cpu.linear.NativeLinear`.
    """

    def __init__(self, matrices: Sequence[NativeMatrix], bias: Tensor | None = None, path: str | None = None) -> None:
        self.matrices = tuple(matrices)
        library = matrices[0].library
        (self.shape,) = {matrix.shape for matrix in matrices}
        self._functions = library.functions
        self._addresses = (_POINTER * len(matrices))(*(matrix.address for matrix in matrices))
        self._bias = None if bias is None else bias.detach().float().contiguous()
        self._path = -1 if path is None else library.paths.index(path)

    def __call__(self, x: Tensor, rows: ExpertRows) -> Tensor:
        """Multiply each row of x [M, in] by its expert's matrix, and return the result [M, out], in the dtype of x.

        Raises MemoryError: when there is no memory to quantize the rows.
        """
        if x.dtype == torch.float16:
            return self(x.float(), rows).to(x.dtype)
        x, counts = x.contiguous(), rows.counts.contiguous()
        assert x.shape == (len(rows.tokens), self.shape[1])
        assert len(counts) == len(self.matrices)
        out = torch.empty(len(x), self.shape[0], dtype=x.dtype)
        failed = self._functions.lorikeet_experts_multiply(
            self._addresses,
            counts.data_ptr(),
            len(counts),
            x.data_ptr(),
            out.data_ptr(),
            None if self._bias is None else self._bias.data_ptr(),
            len(x),
            x.stride(0),
            out.stride(0),
            dtype_number(x.dtype),
            self._path,
            torch.get_num_threads(),
        )
        if failed:
            raise MemoryError(f"no memory to quantize {len(x)} rows")
        return out


EXPERT_FACTORS = np.dtype(
    [
        ("a", np.uint64),
        ("bs", np.uint64, MOST_PROJECTIONS),
        ("ranks", np.int64, MOST_PROJECTIONS),
        ("scalings", np.float64, MOST_PROJECTIONS),
        ("dtype", np.int64),
    ]
)
"""An adapter on one group of projections: addresses of A [experts, all ranks, in] and of each B, transposed, [experts,
rank, out], and the number of their dtype. Rank 0 adds nothing."""


def add_expert_lora_(
    library: NativeLibrary,
    out: Tensor,
    sizes: Sequence[int],
    x: Tensor,
    rows: ExpertRows,
    adapters: Tensor,
    factors: NDArray[np.void],
    path: str | None = None,
) -> None:
    """Add to each row of out the deltas of its adapter's matrices for its expert.

    out [M, sum(sizes)], in place: the outputs of the projections that share x [M, in], side by side. adapters: [N]
    int64, the adapter of each token, -1: none. factors: [adapters] of EXPERT_FACTORS. path: as for
    `kernels.cpu.linear.NativeLinear`.

    Factors, and the matrices that they name, may be freed after `wait_for_helpers` of the library.

    Raises MemoryError: when there is no memory to copy the rows.
    """
    assert out.stride(1) == 1
    assert x.dtype == out.dtype
    assert len(adapters) == len(rows.places)
    x = x if x.stride(1) == 1 else x.contiguous()
    experts = _AdaptedExperts(
        rows.counts.data_ptr(),
        rows.tokens.data_ptr(),
        adapters.data_ptr(),
        factors.ctypes.data,
        len(rows.counts),
        len(rows.tokens),
        len(factors),
        x.data_ptr(),
        out.data_ptr(),
        x.stride(0),
        out.stride(0),
        x.shape[1],
        dtype_number(out.dtype),
        len(sizes),
        (_INT64 * MOST_PROJECTIONS)(*sizes),
    )
    index = -1 if path is None else library.paths.index(path)
    if library.functions.lorikeet_experts_adapt(ctypes.byref(experts), index, torch.get_num_threads()):
        raise MemoryError(f"no memory to copy {len(x)} rows")


class _AdaptedExperts(ctypes.Structure):
    _fields_ = [
        *((name, _POINTER) for name in ("counts", "tokens", "adapters", "factors")),
        *((name, _INT64) for name in ("num_experts", "num_rows", "num_adapters")),
        *((name, _POINTER) for name in ("x", "y")),
        *((name, _INT64) for name in ("x_stride", "y_stride", "width", "dtype", "num_projections")),
        ("num_outputs", _INT64 * MOST_PROJECTIONS),
    ]
