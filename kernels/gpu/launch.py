"""A kernel with all arguments of its launch, as data.

Operations make it, and run it; `kernels.compile` builds it for a GPU that is not there; benches time it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

# No operation needs a fused multiply-add for its result, all are faster with it. Set because Triton's default changes.
FUSE_MULTIPLY_ADD = True


Arguments = dict[str, Tensor | int | float | str | bool | None]  # by parameter name


class Launch(NamedTuple):
    """The launch of a kernel of @triton.jit: its arguments, and its grid of programs along up to three axes."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: Arguments
    num_warps: int = 4
    num_stages: int = 2

    def run(self) -> None:
        """Run the kernel on the current stream; do nothing where the grid is empty."""
        if 0 not in self.grid:
            self.kernel[self.grid](**self.arguments, **self._options)

    def compile(self) -> None:
        """Compile the kernel, so that a run finds it compiled, in this process and on this machine.

        Tensors may exist in shape only.
        """
        self.kernel.warmup(**self.arguments, **self._options, grid=self.grid)

    @property
    def _options(self) -> Arguments:
        return {
            "num_warps": self.num_warps,
            "num_stages": self.num_stages,
            "enable_fp_fusion": FUSE_MULTIPLY_ADD,
        }


def dot_precision(dtype: torch.dtype) -> str:
    """Return the precision of products of two factors of this dtype: fp32 is not rounded to TF32."""
    return "ieee" if dtype == torch.float32 else "tf32"


def power_of_two(value: int) -> int:
    """Return the smallest power of two that is not less than value."""
    return 1 << max(value - 1, 0).bit_length()


def blocks_of(value: int, size: int) -> int:
    """Return the number of blocks of `size` that hold `value` elements."""
    return -(-value // size)


def check_workspace(workspace: Tensor, elements: int) -> None:
    """Check that the workspace is fp32 and holds at least `elements`.

    Raises ValueError: when the workspace is of another dtype or too small.
    """
    if workspace.dtype != torch.float32 or workspace.numel() < elements:
        raise ValueError(
            f"workspace: {elements} elements of float32 are needed, not {workspace.numel()} of {workspace.dtype}"
        )
