"""Blocks of GGUF files: numbers as the `gguf` package has them, the same bits on every path, and matrices of parts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from kernels.cpu.library import NativeLibrary
from kernels.cpu.linear import NativeLinear, dequantized_rows
from kernels.cpu.matrix import BLOCK_FORMATS, NativeMatrix

ROWS = [1, 2, 3, 5, 8, 13, 16, 29, 64, 65]
HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q8_0": [0], "Q4_K": [0, 2], "Q6_K": [208]}
"""The offsets within a block, by format, of its numbers in half precision."""


def random_blocks(name: str, num_outputs: int, num_blocks: int, seed: int = 0) -> NDArray[np.uint8]:
    """Return rows of random bytes as blocks, with finite numbers in half precision."""
    generator = np.random.default_rng(seed)
    blocks = generator.integers(0, 256, (num_outputs, num_blocks, BLOCK_FORMATS[name][2]), dtype=np.uint8)
    for first in HALVES[name]:
        numbers = generator.normal(0, 0.01, (num_outputs, num_blocks, 1)).astype(np.float16)
        blocks[..., first : first + 2] = numbers.view(np.uint8)
    return blocks.reshape(num_outputs, -1)


def reference(name: str, rows: NDArray[np.uint8]) -> torch.Tensor:
    return torch.from_numpy(dequantize(rows, GGMLQuantizationType[name]))


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("name", BLOCK_FORMATS)
@pytest.mark.parametrize(("num_outputs", "num_blocks"), [(1, 1), (15, 3), (48, 2), (300, 1)])
def test_blocks_stand_for_the_numbers_of_the_format(
    library: NativeLibrary, name: str, num_outputs: int, num_blocks: int
) -> None:
    rows = random_blocks(name, num_outputs, num_blocks)
    matrix = NativeMatrix.packed(library, name, rows)
    assert torch.equal(matrix.dequantized(), reference(name, rows))
    assert torch.equal(matrix.rows(torch.tensor([num_outputs - 1])), reference(name, rows)[-1:])


@pytest.mark.parametrize("name", BLOCK_FORMATS)
@pytest.mark.parametrize(("num_outputs", "num_blocks"), [(1, 1), (17, 3), (96, 2)])
def test_products_are_those_of_the_numbers_with_the_same_bits_on_every_path(
    library: NativeLibrary, name: str, num_outputs: int, num_blocks: int
) -> None:
    rows = random_blocks(name, num_outputs, num_blocks)
    matrix, weight = NativeMatrix.packed(library, name, rows), reference(name, rows).double()
    for num_rows in ROWS:
        x = torch.randn(num_rows, weight.shape[1])
        plain, *others = [NativeLinear(matrix, path=path)(x) for path in library.paths]
        theirs = dequantized_rows(x).double() @ weight.T
        assert (plain - theirs).norm() <= 1e-5 * theirs.norm()
        assert all(torch.equal(plain, other) for other in others)


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_a_row_has_the_same_bits_alone_and_among_neighbors(library: NativeLibrary, name: str) -> None:
    matrix = NativeMatrix.packed(library, name, random_blocks(name, 50, 2))
    x = torch.randn(33, matrix.shape[1])
    for path in library.paths:
        linear = NativeLinear(matrix, path=path)
        alone = torch.cat([linear(row[None]) for row in x])
        assert all(torch.equal(linear(x[:rows]), alone[:rows]) for rows in range(1, 34))


@pytest.mark.parametrize("name", BLOCK_FORMATS)
@pytest.mark.parametrize("poison", [0x7C00, 0xFC00, 0x7E01])
def test_numbers_that_are_not_finite_are_refused(library: NativeLibrary, name: str, poison: int) -> None:
    for first in HALVES[name]:
        rows = random_blocks(name, 20, 3)
        last = (3 - 1) * BLOCK_FORMATS[name][2] + first
        rows[13, last : last + 2] = np.array([poison], dtype=np.uint16).view(np.uint8)
        with pytest.raises(ValueError, match=r"\[20, "):
            NativeMatrix.packed(library, name, rows)


def test_one_matrix_may_have_parts_of_three_formats(library: NativeLibrary) -> None:
    names, outputs = ["Q4_K", "Q6_K", "Q4_0"], [32, 16, 23]
    sources = [
        random_blocks(name, count, 512 // BLOCK_FORMATS[name][1], seed)
        for seed, (name, count) in enumerate(zip(names, outputs, strict=True))
    ]
    x = torch.randn(70, 512)
    parts = [NativeMatrix.packed(library, name, rows) for name, rows in zip(names, sources, strict=True)]
    expected = torch.cat([NativeLinear(part)(x) for part in parts], 1)
    weight = torch.cat([reference(name, rows) for name, rows in zip(names, sources, strict=True)])
    joined = NativeMatrix.joined(parts)
    assert joined.shape == weight.shape
    assert torch.equal(joined.dequantized(), weight)
    assert torch.equal(joined.rows(torch.tensor([70, 31, 32, 47, 48])), weight[[70, 31, 32, 47, 48]])
    for path in library.paths:
        assert torch.equal(NativeLinear(joined, path=path)(x), expected)


def test_matrices_that_do_not_fit_together_stay_two(library: NativeLibrary) -> None:
    ours, theirs, other = (
        NativeMatrix.packed(library, "Q8_0", random_blocks("Q8_0", outputs, blocks))
        for outputs, blocks in [(17, 2), (16, 2), (16, 3)]
    )
    for pair in [(ours, theirs), (theirs, other)]:
        with pytest.raises(ValueError, match="cannot be one"):
            NativeMatrix.joined(pair)
    assert [len(each.parts()) for each in (ours, theirs, other)] == [1, 1, 1]


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_memory_of_a_matrix_makes_the_same_matrix_again(library: NativeLibrary, name: str) -> None:
    first, second = (NativeMatrix.packed(library, name, random_blocks(name, 32, 2, seed)) for seed in (0, 1))
    source = NativeMatrix.joined([first, second])
    expected = source.dequantized()
    again = NativeMatrix.empty(library, [part[:2] for part in source.parts()], source.shape[1])
    for ours, theirs in zip(again.parts(), source.parts(), strict=True):
        assert len(ours.memory) == len(theirs.memory)
        ours.memory[:] = theirs.memory
    assert torch.equal(again.dequantized(), expected)
