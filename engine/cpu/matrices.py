"""A base model's frozen matrices in the formats of the native kernels, made of weights or of a GGUF file's blocks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.config import ModelConfig, UnsupportedModel
from engine.cpu.importance import NOTHING, Importance
from engine.cpu.kept import KeptMatrices, MatricesWriter
from engine.models.weights import Product, StackedMatrices, parts_of_expert
from kernels.cpu.experts import NativeGrouped
from kernels.cpu.library import NativeLibrary
from kernels.cpu.linear import NativeEmbedding, NativeLinear
from kernels.cpu.matrix import BLOCK, BLOCK_FORMATS, GROUP, Format, NativeMatrix

HEADS = {"lm_head.weight", "model.embed_tokens.weight"}
"""Matrices with a row for each token. They stay in 8-bit integers in every format: in 4 bits they lose most."""

GROUP_BYTES: dict[Format, int] = {"int8": 34, "int4": 20}
"""Bytes of a group's weights with their scale, and their minimum where there is one."""


class Blocks(Protocol):
    """A model's matrices in blocks, by name: read from a GGUF file, or made of a checkpoint's integers."""

    def format_of(self, name: str) -> str:
        """Return the name of the format of a matrix's blocks; "" where there are none."""

    def blocks(self, name: str, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        """Return the rows of a matrix's blocks [out, bytes].

        Raises UnsupportedModel: when there is no such matrix.
        """


def matrices_bytes(config: ModelConfig, kind: Format) -> int:
    """Return the bytes of a model's matrices in a format, without what lies between them in memory."""

    def num_bytes(outputs: int, inputs: int, kind: Format) -> int:
        return -(-outputs // BLOCK) * BLOCK * -(-inputs // GROUP) * GROUP_BYTES[kind]

    layer = sum(num_bytes(outputs, inputs, kind) for inputs, outputs in config.projection_shapes().values())
    if config.experts is not None:
        expert = sum(num_bytes(outputs, inputs, kind) for inputs, outputs in config.expert_shapes().values())
        layer += config.experts.number * expert
    head = num_bytes(config.vocab_size, config.hidden_size, "int8")
    return config.num_layers * layer + head * (1 if config.tie_word_embeddings else 2)


class NativeMatrices:
    """Makes products and embeddings, one at a time: no more than one matrix is in memory as it is in the checkpoint."""

    def __init__(
        self,
        library: NativeLibrary,
        kind: Format,
        dtype: torch.dtype = torch.float32,
        blocks: Blocks | None = None,
        kept: KeptMatrices | None = None,
        writer: MatricesWriter | None = None,
        importance: Importance = NOTHING,
    ) -> None:
        """Make matrices of a kind.

        dtype: the dtype of the rows of tokens, and so of the model.
        blocks: the file's own blocks, which are taken as they are if the kernels multiply their format.
        kept: matrices that were made before, which are read instead.
        writer: gets the matrices that are made.
        importance: the weights of the inputs of matrices of 4-bit integers.
        """
        self._library = library
        self._kind = kind
        self._dtype = dtype
        self._blocks = blocks
        self._kept = kept
        self._writer = writer
        self._importance = importance

    def linear(self, matrices: StackedMatrices, bias: Tensor | None) -> NativeLinear:
        """Return the product with the matrices.

        bias: [out]; None without one.

        Raises UnsupportedModel: when a matrix is too large or holds a number that is not finite.
        Raises DamagedFile: when a kept matrix is not what was written.
        """
        return NativeLinear(self._matrix(matrices), bias)

    def grouped(self, matrices: StackedMatrices, bias: Tensor | None, number: int) -> NativeGrouped:
        """Return the products with the matrices of `number` experts, which are quantized one at a time.

        bias: [E * out], expert by expert; None without one.

        Raises as `linear`.
        """
        made = [self._matrix(matrices.select(which)) for which in parts_of_expert(matrices, number)]
        return NativeGrouped(made, None if bias is None else bias.view(number, -1))

    def embedding(self, table: StackedMatrices, head: Product | None) -> NativeEmbedding:
        """Return the rows of a table [V, H].

        head: the output head, where its matrix is the same table; the rows are then read from it.

        Raises as `linear`.
        """
        return NativeEmbedding(head.weight if isinstance(head, NativeLinear) else self._matrix(table), self._dtype)

    def _matrix(self, matrices: StackedMatrices) -> NativeMatrix:
        if self._kept is not None:
            return self._kept.matrix(matrices.names)
        made = self._make_native(matrices)
        if self._writer is not None:
            self._writer.add(matrices.names, made)
        return made

    def _make_native(self, matrices: StackedMatrices) -> NativeMatrix:
        everything = range(len(matrices.names))
        if self._blocks is None or not any(self._format(name) for name in matrices.names):
            return self._quantized_matrix(matrices, everything)
        groups = [
            (name, list(which))
            for name, which in itertools.groupby(everything, lambda i: self._format(matrices.names[i]))
        ]
        ends = itertools.accumulate(sum(matrices.shapes[i][0] for i in which) for _, which in groups[:-1])
        if any(end % BLOCK for end in ends):  # no two formats share one block of outputs
            return self._quantized_matrix(matrices, everything)
        parts = [
            self._matrix_of_blocks(self._blocks, name, matrices, which)
            if name
            else self._quantized_matrix(matrices, which)
            for name, which in groups
        ]
        with _naming(matrices.names):
            return NativeMatrix.joined(parts)

    def _format(self, name: str) -> str:
        """Return the format of a matrix's blocks; "" where there are none that the kernels multiply."""
        found = "" if self._blocks is None else self._blocks.format_of(name)
        return found if found in BLOCK_FORMATS else ""

    def _matrix_of_blocks(
        self, blocks: Blocks, name: str, matrices: StackedMatrices, which: Sequence[int]
    ) -> NativeMatrix:
        rows = [blocks.blocks(matrices.names[i], matrices.shapes[i]) for i in which]
        with _naming([matrices.names[i] for i in which]):
            return NativeMatrix.packed(self._library, name, rows[0] if len(rows) == 1 else np.concatenate(rows))

    def _quantized_matrix(self, matrices: StackedMatrices, which: Sequence[int]) -> NativeMatrix:
        kind: Format = "int8" if HEADS.issuperset(matrices.names) else self._kind
        weight = matrices.read(which)
        with _naming([matrices.names[i] for i in which]):
            return NativeMatrix.quantized(self._library, weight, kind, self._importance.of_inputs(matrices.names[0]))


@contextmanager
def _naming(names: Sequence[str]) -> Iterator[None]:
    """Turn a ValueError within the context into an UnsupportedModel that names the tensors."""
    try:
        yield
    except ValueError as error:
        raise UnsupportedModel(f"{', '.join(names)}: {error}") from None
