"""Frozen matrices of small integers in the memory of the native kernels (`native/product.h`).

Semantics: a weight is scale * q + minimum, with groups g of 32 inputs i and an integer q for each output o and input.
    int8    q in -127..127, a scale in bfloat16 for each o, g: of about max_i |weight[o, i]| / 127 and the 7 numbers
            below, the one with the least squared error; no minimum
    int4    q in 0..15, a scale and a minimum in float16 for each o, g: of 16 ranges, which leave out up to 3/48 of the
            whole range on each side, the one with the least squared error, each error times its input's importance
Blocks of GGUF files stand for the numbers that https://github.com/ggml-org/ggml/blob/master/src/ggml-quants.c says.
Knows nothing of products.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from ctypes import c_char, c_int64
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.cpu.library import NativeLibrary

Format = Literal["int8", "int4"]

FORMATS: dict[Format, str] = {
    "int8": "int8, groups of 32, the best of 8 scales, inputs in 16 bits; embedding too; cache in bfloat16",
    "int4": "int4, groups of 32, the best of 16 ranges for the inputs of a text, inputs in 16 bits; "
    "head, embedding in int8; cache in bfloat16",
}
"""The semantics of each format in words, and what is beside it. Figures that were measured with another wording are not
these kernels' figures, and matrices that were kept with another one are not these matrices."""

LAYOUT = 1
"""The number of the order in which matrices lie in memory, which changes with `native/product.h`."""

GROUP = 32
BLOCK = 16
"""Outputs that lie side by side: parts of a matrix begin at multiples of this number."""

NUM_SCALES = 8
NUM_ENDS = 4
LEAST = 1e-30
"""A group whose largest number is below this is stored as zeros."""

BLOCK_FORMATS = {"Q4_0": (2, 32, 18), "Q4_1": (3, 32, 20), "Q8_0": (8, 32, 34), "Q4_K": (12, 256, 144),
                 "Q6_K": (14, 256, 210)}  # fmt: skip
"""Blocks of GGUF files that are multiplied as they are: the format's number, and the numbers and bytes of a block."""

_KINDS: dict[Format, int] = {"int8": 0, "int4": 1}


class PartMemory(NamedTuple):
    """The memory of those outputs of a matrix that have one format."""

    kind: int
    """The format's number in `native/product.h`."""
    num_outputs: int
    memory: memoryview


class NativeMatrix:
    """A matrix [out, in] in the memory of the native kernels. address: the address of the native struct."""

    def __init__(self, library: NativeLibrary, address: int | None, shape: tuple[int, int]) -> None:
        """Take over the native matrix at an address.

        Raises ValueError: when the address is None, because the matrix was too large or held a number that is not
        finite.
        """
        if address is None:
            raise ValueError(f"a matrix of {list(shape)} has numbers that are not finite, or is too large")
        self.library, self.address = library, address
        self.shape = torch.Size(shape)
        self._free = weakref.finalize(self, library.functions.lorikeet_matrix_free, address)

    @classmethod
    def quantized(
        cls, library: NativeLibrary, weight: Tensor, kind: Format = "int8", importance: Tensor | None = None
    ) -> NativeMatrix:
        """Return the quantized matrix of a weight [out, in], which is not kept.

        importance: the weight of each input [in] in the errors of `int4`; None: all inputs are alike.

        Raises ValueError: when the matrix is too large, or it or the importance holds a number that is not finite.
        """
        source = weight.detach().float().contiguous()
        outputs, inputs = source.shape
        function = library.functions.lorikeet_matrix_quantize
        weighed = None if importance is None else importance.float().contiguous()
        assert weighed is None or weighed.shape == (inputs,)
        if weighed is not None and not (weighed.isfinite() & (weighed >= 0)).all():
            raise ValueError("the importance of inputs has numbers that are negative or not finite")
        pointer = None if weighed is None else weighed.data_ptr()
        address = function(_KINDS[kind], source.data_ptr(), outputs, inputs, pointer, torch.get_num_threads())
        return cls(library, address, (outputs, inputs))

    @classmethod
    def packed(cls, library: NativeLibrary, name: str, rows: NDArray[np.uint8]) -> NativeMatrix:
        """Return the matrix of a GGUF file's blocks. name: a key of BLOCK_FORMATS; rows [out, bytes of a row].

        Raises ValueError: when the matrix is too large or holds a number that is not finite.
        """
        number, size, num_bytes = BLOCK_FORMATS[name]
        source = np.ascontiguousarray(rows)
        outputs, inputs = len(source), source.shape[1] // num_bytes * size
        assert source.shape[1] % num_bytes == 0
        function = library.functions.lorikeet_matrix_pack
        address = function(number, source.ctypes.data, outputs, inputs, torch.get_num_threads())
        return cls(library, address, (outputs, inputs))

    @classmethod
    def empty(cls, library: NativeLibrary, parts: Sequence[tuple[int, int]], num_inputs: int) -> NativeMatrix:
        """Return a matrix of zeros, whose memory is to be filled.

        parts: the kind and the number of outputs of each part. num_inputs: the inputs of the matrix.

        Raises ValueError: when the matrix is too large, or its parts do not fit together.
        """
        function = library.functions.lorikeet_matrix_new
        made = [cls(library, function(kind, outputs, num_inputs), (outputs, num_inputs)) for kind, outputs in parts]
        return cls.joined(made)

    @classmethod
    def joined(cls, matrices: Sequence[NativeMatrix]) -> NativeMatrix:
        """Return the first of up to three matrices with the outputs of the others, which must not be used any more.

        The number of outputs of all but the last is a multiple of 16.

        Raises ValueError: when the matrices do not fit together.
        """
        first, *others = matrices
        for other in others:
            if first.library.functions.lorikeet_matrix_join(first.address, other.address):
                raise ValueError(f"matrices of {[list(each.shape) for each in matrices]} cannot be one")
            other._free.detach()
            first.shape = torch.Size((first.shape[0] + other.shape[0], first.shape[1]))
        return first

    def parts(self) -> list[PartMemory]:
        """Return the memory of all parts, which may be read, or written where the matrix is new."""
        found: list[PartMemory] = []
        fields = (c_int64 * 4)()
        while not self.library.functions.lorikeet_matrix_part(self.address, len(found), fields):
            kind, outputs, num_bytes, address = fields
            found.append(PartMemory(kind, outputs, memoryview((c_char * num_bytes).from_address(address)).cast("B")))
        return found

    def dequantized(self) -> Tensor:
        """Return the numbers [out, in] float32 that the matrix stands for."""
        out = torch.empty(self.shape)
        self.library.functions.lorikeet_matrix_dequantize(self.address, out.data_ptr())
        return out

    def rows(self, outputs: Tensor) -> Tensor:
        """Return the numbers [N, in] float32 that the matrix's rows outputs [N] (integers) stand for."""
        numbers = outputs.to(torch.int64).contiguous()
        assert not len(numbers) or 0 <= int(numbers.min()) <= int(numbers.max()) < self.shape[0]
        out = torch.empty(len(numbers), self.shape[1])
        self.library.functions.lorikeet_matrix_rows(self.address, numbers.data_ptr(), len(numbers), out.data_ptr())
        return out


def dequantized_weight(weight: Tensor, kind: Format = "int8", importance: Tensor | None = None) -> Tensor:
    """Return the numbers that the quantized weight [out, in] float32 stands for, in the same shape.

    importance: as for `NativeMatrix.quantized`.
    """
    return _eight_bits(weight) if kind == "int8" else _four_bits(weight, importance)


def _eight_bits(weight: Tensor) -> Tensor:
    groups = groups_of(weight)
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
    return ungrouped(torch.where(bound < LEAST, 0.0, best), weight)


def _four_bits(weight: Tensor, importance: Tensor | None) -> Tensor:
    weighed = 1.0 if importance is None else groups_of(importance[None])
    # A group that is not full has its last weight again up to its end.
    groups = groups_of(torch.cat((weight, weight[:, -1:].expand(-1, -weight.shape[1] % GROUP)), 1))
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    step = (high - low) * torch.tensor(1 / 48, dtype=torch.float32)
    best = torch.zeros_like(groups)
    least = torch.full_like(low, torch.inf)
    for number in range(NUM_ENDS**2):
        first, last = low + step * (number // NUM_ENDS), high - step * (number % NUM_ENDS)
        scale, minimum = ((last - first) / 15.0).half().float(), first.half().float()
        factor = torch.where(scale == 0, 0.0, 1.0 / scale)
        rounded = ((groups - minimum) * factor).round().clamp(0, 15) * scale + minimum
        lost = (rounded - groups).square() * weighed
        while lost.shape[-1] > 1:
            lost = lost[..., : lost.shape[-1] // 2] + lost[..., lost.shape[-1] // 2 :]
        best = torch.where(lost < least, rounded, best)
        least = torch.minimum(lost, least)
    return ungrouped(best, weight)


def groups_of(x: Tensor) -> Tensor:
    """Return the groups [rows, groups, GROUP] of x [rows, in], with zeros up to the end of the last one."""
    return torch.nn.functional.pad(x, (0, -x.shape[1] % GROUP)).view(x.shape[0], -1, GROUP)


def ungrouped(groups: Tensor, x: Tensor) -> Tensor:
    """Return the numbers of groups [rows, groups, GROUP] in the shape of x, without the zeros of `groups_of`."""
    return groups.flatten(1)[:, : x.shape[1]]
