"""4-bit integers of a checkpoint as blocks that the native kernels multiply, with the protocol of GGUF's weights.

A block of 32 inputs stands for `scale * q + minimum`, with both in float16 (`kernels.cpu.matrix`); a group of a
checkpoint stands for `scale * (q - zero)`. So q and, in float16, the scale are kept as they are. The minimum, which is
`-zero * scale`, is rounded to float16: by at most a 136th of a step of the integers, and by nothing where the zero
point is a power of two, as it is for symmetric ones.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from engine.config import ModelConfig
from engine.models.packed.files import PackedFiles
from engine.models.packed.matrices import IntMatrix

GROUP = 32
FORMAT = "Q4_1"
MOST_RECENT = 3
"""The number of matrices that are cached: those that share an input are asked for together, more than once."""
LOST = 2.0**-10
"""The largest relative error that storing a scale in float16 may cause."""


class PackedBlocks:
    """The matrices of a folder as blocks, read anew at every use. Use as a context, which keeps the files open."""

    def __init__(self, folder: Path, config: ModelConfig) -> None:
        """Open the files of a model.

        Raises UnsupportedModel: when they cannot be read.
        """
        self._files = PackedFiles(folder, config)
        self._recent: dict[str, NDArray[np.uint8] | None] = {}
        self._shapes = {
            f"model.layers.{index}.{module}": (outputs, inputs)
            for index in range(config.num_layers)
            for module, (inputs, outputs) in _modules(config).items()
        }

    def __enter__(self) -> PackedBlocks:
        self._files.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._files.__exit__(*error)

    def format_of(self, name: str) -> str:
        """Return the name of the format of a matrix's blocks; "" where it is not made of blocks."""
        return "" if self._read(name) is None else FORMAT

    def blocks(self, name: str, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        """Return the rows of a matrix's blocks [out, bytes], in the engine's order of outputs."""
        rows = self._read(name)
        assert rows is not None
        assert len(rows) == shape[0]
        return rows

    def _read(self, name: str) -> NDArray[np.uint8] | None:
        if name not in self._recent:
            if len(self._recent) == MOST_RECENT:
                self._recent.clear()
            shape = self._shapes.get(name)
            found = None if shape is None else self._files.matrix(name, shape)
            self._recent[name] = to_blocks(found) if isinstance(found, IntMatrix) else None
        return self._recent[name]


def to_blocks(matrix: IntMatrix) -> NDArray[np.uint8] | None:
    """Return the rows of blocks [out, bytes] of a matrix; None where blocks cannot hold it.

    Groups must lie in order and hold whole blocks, and scales must be numbers of float16.
    """
    outputs, inputs = matrix.shape
    if (
        matrix.bits != 4
        or matrix.groups is not None
        or inputs % GROUP
        or (matrix.inputs % GROUP and matrix.inputs < inputs)
    ):
        return None
    scales = matrix.scales.half()
    minima = (-matrix.zeros.float() * matrix.scales).half()
    if not bool(((scales.float() - matrix.scales).abs() <= LOST * matrix.scales.abs()).all()):
        return None
    if not bool(minima.isfinite().all()):
        return None
    num_blocks = inputs // GROUP
    of_blocks = torch.arange(num_blocks) * GROUP // matrix.inputs
    heads = torch.stack((scales[:, of_blocks], minima[:, of_blocks]), -1).view(torch.uint8)  # [out, blocks, 4]
    halves = matrix.integers.view(outputs, num_blocks, 2, GROUP // 2)
    nibbles = halves[:, :, 0] | (halves[:, :, 1] << 4)
    return torch.cat((heads, nibbles), -1).view(outputs, -1).numpy()


def _modules(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """Return the inputs and outputs of the matrices of a layer, by their names below it."""
    block_of = {"gate_proj": "mlp", "up_proj": "mlp", "down_proj": "mlp"}
    return {
        f"{block_of.get(name, 'self_attn')}.{name}.weight": shape for name, shape in config.projection_shapes().items()
    }
