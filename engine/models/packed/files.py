"""Tensors of a quantized checkpoint by name over all files of a folder, with matrices assembled from several tensors.

A matrix goes by the name that it has where nothing is quantized, such as `model.layers.0.mlp.up_proj.weight`. All
shapes are checked against each other by the heads of the files before anything is read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.config import ModelConfig, UnsupportedModel
from engine.config.model import Scheme
from engine.lora.layout import FusedPart, in_order, part_of
from engine.models.packed.layouts import awq_gemm, gptq_rows, gptq_zeros, unpacked
from engine.models.packed.matrices import Float8Matrix, IntMatrix, PackedMatrix

FLOATS = {"F64", "F32", "F16", "BF16", "F8_E8M0"}
FLOAT8 = "F8_E4M3"

# The tensors of a module that is quantized, by what they say: its weights, and what is beside these.
_WEIGHTS = ("weight", "qweight", "weight_packed")
_BESIDE = (
    *("qzeros", "scales", "g_idx", "weight_scale", "weight_scale_inv", "weight_shape", "weight_zero_point"),
    *("weight_g_idx", "input_scale", "activation_scale"),
)
_OF_CACHE = ("k_scale", "v_scale", "q_scale", "kv_scale", "output_scale")
"""Scales of keys and values, which are kept as they are: they say nothing about a weight."""
NOT_SYMMETRIC = "has zero points, but no format of the config with these scales has any"
_BIASED = ("q_proj", "k_proj", "v_proj", "qkv_proj")


class PackedFiles:
    """The tensors of a folder. Use as a context, which keeps the files open."""

    def __init__(self, folder: Path, config: ModelConfig) -> None:
        """Open the files of a model whose config has `quantized`.

        Raises UnsupportedModel: when a file cannot be read, or there is none.
        """
        assert config.quantized is not None
        self._config, self._quantized = config, config.quantized
        self._stack = ExitStack()
        self._files: dict[str, Any] = {}
        for path in sorted(folder.glob("*.safetensors")):
            try:
                file = self._stack.enter_context(safe_open(path, framework="pt"))
            except (OSError, SafetensorError) as error:
                self._stack.close()
                raise UnsupportedModel(f"{path} cannot be read: {error}") from None
            self._files.update(dict.fromkeys(file.keys(), file))
        if not self._files:
            raise UnsupportedModel(f"{folder} holds no *.safetensors")
        self._names = dict.fromkeys(self._all_names())

    def __enter__(self) -> PackedFiles:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def keys(self) -> Iterator[str]:
        """Return the names of all tensors. A quantized matrix has one name, that of the plain matrix."""
        return iter(self._names)

    def _all_names(self) -> Iterator[str]:
        for name in self._files:
            module, _, last = name.rpartition(".")
            if last in _WEIGHTS:
                yield f"{module}.weight"
                continue
            is_beside = last in _BESIDE and self._is_packed(module)
            is_of_cache = last in _OF_CACHE and ".self_attn" in name
            if not is_beside and not is_of_cache and not self._is_needless_bias(module, last):
                yield name

    def get_slice(self, name: str) -> Any:
        """Return a tensor, of which parts may be taken; a quantized matrix as the numbers that it stands for."""
        module, _, last = name.rpartition(".")
        if last == "weight" and self._is_packed(module):
            return self._read(module).dequantized()
        return self._files[name].get_slice(name)

    def matrix(self, name: str, shape: tuple[int, int]) -> PackedMatrix | None:
        """Return a matrix by the name and in the shape that the model has, in the engine's order of outputs.

        None where the file holds it as it is.

        Raises UnsupportedModel: when the matrix is missing or has another shape.
        """
        part = part_of(name, self._config) if name not in self._names else None
        source = name if part is None else part.source
        module = source.removesuffix(".weight")
        if not self._is_packed(module):
            return None
        found = self._read(module)
        whole = shape if part is None else (part.num_rows, shape[1])
        if found.shape != whole:
            raise UnsupportedModel(f"{source} is {list(found.shape)}, the config asks for {list(whole)}")
        return self._ordered(name, found, part, shape[0])

    def _ordered(self, name: str, found: PackedMatrix, part: FusedPart | None, num_rows: int) -> PackedMatrix:
        """Return the outputs of a part of a matrix, in the engine's order.

        part: the part that the module is of a fused one; None: it is a module by itself.
        """
        which = torch.arange(len(found[0]))
        if part is not None:
            which = which[part.first : part.first + num_rows]
        which = in_order(name, which, self._config)
        if len(which) == len(found[0]) and bool((which == torch.arange(len(which))).all()):
            return found
        if isinstance(found, IntMatrix):
            integers, scales, zeros = (each[which] for each in (found.integers, found.scales, found.zeros))
            return found._replace(integers=integers, scales=scales, zeros=zeros)
        # Outputs that share a scale may lie apart now, and so each gets its own.
        scales = found.scales.repeat_interleave(found.rows, 0)[which]
        numbers = found.numbers.view(torch.uint8)[which].view(torch.float8_e4m3fn)
        return found._replace(numbers=numbers, scales=scales, rows=1)

    def _is_packed(self, module: str) -> bool:
        """Tell whether the weights of a module are quantized."""
        if f"{module}.qweight" in self._files or f"{module}.weight_packed" in self._files:
            return True
        return self._dtype(f"{module}.weight") in (FLOAT8, "I8", "U8")

    def _is_needless_bias(self, module: str, last: str) -> bool:
        """Tell whether a tensor is a bias of zeros that the model has none of: GPTQ's tools give one to each module."""
        projection = module.rpartition(".")[2]
        has_bias = self._config.o_bias if projection == "o_proj" else self._config.qkv_bias and projection in _BIASED
        if last != "bias" or self._quantized.method != "gptq" or has_bias:
            return False
        return self._is_packed(module) and not bool(self._tensor(f"{module}.bias").any())

    def _dtype(self, name: str) -> str:
        return str(self._files[name].get_slice(name).get_dtype()) if name in self._files else ""

    def _shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._files[name].get_slice(name).get_shape())

    def _tensor(self, name: str) -> Tensor:
        tensor: Tensor = self._files[name].get_tensor(name)
        return tensor

    def _take(self, name: str, shapes: Iterable[tuple[int, ...]], dtypes: Iterable[str]) -> Tensor:
        """Return a tensor that must be there, in one of these shapes and dtypes.

        Raises UnsupportedModel: when the tensor is missing, or has another shape or dtype.
        """
        if name not in self._files:
            raise UnsupportedModel(f"the checkpoint lacks {name}")
        shape, dtype, allowed = self._shape(name), self._dtype(name), list(shapes)
        if shape not in allowed:
            raise UnsupportedModel(
                f"{name} is {list(shape)}, and should be {' or '.join(map(str, map(list, allowed)))}"
            )
        if dtype not in set(dtypes):
            raise UnsupportedModel(f"{name} is in {dtype}, and should be in {' or '.join(sorted(dtypes))}")
        return self._tensor(name)

    def _read(self, module: str) -> PackedMatrix:
        """Return the quantized matrix of a module.

        Raises UnsupportedModel: when its tensors do not fit together, or are of no format that the config names.
        """
        method = self._quantized.method
        if f"{module}.qweight" in self._files:
            if method not in ("awq", "gptq"):
                raise UnsupportedModel(f"{module}.qweight: quant_method is {method}")
            return self._awq(module) if method == "awq" else self._gptq(module)
        if method in ("awq", "gptq"):
            raise UnsupportedModel(f"{module} is not in the format of {method}")
        if f"{module}.weight_packed" in self._files:
            return self._compressed_integers(module)
        if self._dtype(f"{module}.weight") == FLOAT8:
            return self._float8(module)
        if self._dtype(f"{module}.weight") == "I8":
            return self._whole_integers(module)
        raise UnsupportedModel(f"{module}.weight is in {self._dtype(f'{module}.weight')}, which is not supported")

    def _matrix_shape(self, name: str) -> tuple[int, int]:
        shape = self._shape(name)
        if len(shape) != 2 or 0 in shape:
            raise UnsupportedModel(f"{name} is {list(shape)}, which is no matrix")
        return shape[0], shape[1]

    def _float8(self, module: str) -> Float8Matrix:
        weight = f"{module}.weight"
        outputs, inputs = self._matrix_shape(weight)
        name = f"{module}.weight_scale_inv"  # the same factor, as DeepSeek calls it
        if name not in self._files:
            name = f"{module}.weight_scale"
        if name not in self._files:
            raise UnsupportedModel(f"{weight} is in {FLOAT8}, but the checkpoint lacks {name}")
        found = [scheme for scheme in self._quantized.schemes if scheme.kind == "float8"]
        shapes: dict[tuple[int, ...], Scheme] = {}
        for scheme in found:
            for shape in _scale_shapes(scheme, outputs, inputs):
                shapes.setdefault(shape, scheme)
        if not shapes:
            raise UnsupportedModel(f"{weight} is in {FLOAT8}, of which the config says nothing")
        self._check_no_zeros(module)
        scales = _finite(name, self._take(name, shapes, FLOATS))
        scheme = shapes[tuple(scales.shape)]
        rows, of_inputs = scheme.rows or outputs, scheme.inputs or inputs
        return Float8Matrix(
            self._tensor(weight),
            scales.reshape(-(-outputs // rows), -(-inputs // of_inputs)),
            min(rows, outputs),
            min(of_inputs, inputs),
        )

    def _awq(self, module: str) -> IntMatrix:
        name, (scheme,) = f"{module}.qweight", self._quantized.schemes
        first, last = self._matrix_shape(name)
        if self._quantized.layout == "gemv":
            outputs, inputs = first, last * 8
            group, num_groups = _groups(name, scheme, inputs)
            widths = range(-(-num_groups // 8), num_groups + 32)  # padded, by rules that differ with the group
            zeros = self._take(f"{module}.qzeros", ((outputs, width) for width in widths), {"I32"})
            scales = self._take(f"{module}.scales", ((outputs, width * 8) for width in widths), FLOATS)
            integers = unpacked(self._take(name, ((first, last),), {"I32"}), 4)
            return IntMatrix(
                integers,
                _finite(f"{module}.scales", scales[:, :num_groups].contiguous()),
                unpacked(zeros, 4)[:, :num_groups].contiguous(),
                4,
                group,
            )
        inputs, outputs = first, last * 8
        group, num_groups = _groups(name, scheme, inputs)
        zeros = self._take(f"{module}.qzeros", ((num_groups, last),), {"I32"})
        scales = self._take(f"{module}.scales", ((num_groups, outputs),), FLOATS)
        integers = awq_gemm(self._take(name, ((first, last),), {"I32"}))
        scales = _finite(f"{module}.scales", scales).T.contiguous()
        return IntMatrix(integers.T.contiguous(), scales, awq_gemm(zeros).T.contiguous(), 4, group)

    def _gptq(self, module: str) -> IntMatrix:
        name, (scheme,) = f"{module}.qweight", self._quantized.schemes
        first, outputs = self._matrix_shape(name)
        inputs = first * 32 // scheme.bits
        group, num_groups = _groups(name, scheme, inputs)
        width = -(-outputs * scheme.bits // 32)
        zeros = self._take(f"{module}.qzeros", ((num_groups, width),), {"I32"})
        scales = self._take(f"{module}.scales", ((num_groups, outputs),), FLOATS)
        integers = gptq_rows(self._take(name, ((first, outputs),), {"I32"}), scheme.bits)
        of_zeros = gptq_zeros(zeros, scheme.bits, is_first=self._quantized.layout == "gptq")[:, :outputs]
        scales = _finite(f"{module}.scales", scales).T.contiguous()
        groups = self._order(f"{module}.g_idx", inputs, group, num_groups)
        return IntMatrix(integers, scales, of_zeros.T.contiguous(), scheme.bits, group, groups)

    def _order(self, name: str, inputs: int, group: int, num_groups: int) -> Tensor | None:
        """Return the group [in] of each input; None where they lie in order, or no tensor says it.

        Raises UnsupportedModel: when the tensor names a group that the matrix does not have.
        """
        if name not in self._files:
            return None
        groups = self._take(name, ((inputs,),), {"I32", "I64"}).to(torch.int64)
        if bool((groups < 0).all()):  # an old way to say that there is no order
            return None
        if bool((groups < 0).any()) or bool((groups >= num_groups).any()):
            raise UnsupportedModel(f"{name} has groups that are not in 0..{num_groups - 1}")
        return None if bool((groups == torch.arange(inputs) // group).all()) else groups

    def _compressed_integers(self, module: str) -> IntMatrix:
        """Return compressed-tensors' packed integers, which are signed there."""
        name = f"{module}.weight_packed"
        outputs, num_words = self._matrix_shape(name)
        shape = self._take(f"{module}.weight_shape", ((2,),), {"I64", "I32"}).tolist()
        inputs = shape[1]
        fitting = [
            scheme
            for scheme in self._quantized.schemes
            if scheme.kind == "int" and num_words == -(-inputs * scheme.bits // 32)
        ]
        if shape[0] != outputs or not fitting:
            raise UnsupportedModel(
                f"{name} is {[outputs, num_words]}, which does not hold {shape} of the config's bits"
            )
        scheme, scales = self._scales(module, fitting, outputs, inputs)
        group, num_groups = scheme.inputs or inputs, scales.shape[1]
        bits = scheme.bits
        integers = unpacked(self._take(name, ((outputs, num_words),), {"I32"}), bits)[:, :inputs].contiguous()
        of_zeros = f"{module}.weight_zero_point"
        if self._dtype(of_zeros) == "I32" or not scheme.symmetric:
            width = -(-outputs * bits // 32)
            words = self._take(of_zeros, ((width, num_groups),), {"I32"})
            zeros = unpacked(words.T.contiguous(), bits).T[:outputs].contiguous()
            if scheme.symmetric and not bool((zeros == 1 << (bits - 1)).all()):
                raise UnsupportedModel(f"{of_zeros} {NOT_SYMMETRIC}")
        else:
            self._check_no_zeros(module)
            zeros = torch.full((outputs, num_groups), 1 << (bits - 1), dtype=torch.uint8)
        groups = self._order(f"{module}.weight_g_idx", inputs, group, num_groups)
        return IntMatrix(integers, scales, zeros, bits, group, groups)

    def _whole_integers(self, module: str) -> IntMatrix:
        """Return compressed-tensors' 8-bit integers, one in a byte."""
        name = f"{module}.weight"
        outputs, inputs = self._matrix_shape(name)
        eight = [scheme for scheme in self._quantized.schemes if scheme.kind == "int" and scheme.bits == 8]
        if not eight:
            raise UnsupportedModel(f"{name} is in I8, of which the config says nothing")
        scheme, scales = self._scales(module, eight, outputs, inputs)
        integers = (self._tensor(name).to(torch.int16) + 128).to(torch.uint8)
        zeros = torch.full_like(scales, 128, dtype=torch.uint8)
        if not scheme.symmetric:
            of_file = self._take(f"{module}.weight_zero_point", _scale_shapes(scheme, outputs, inputs), {"I8"})
            zeros = (of_file.to(torch.int16) + 128).to(torch.uint8).reshape(-1, scales.shape[1])
            zeros = zeros.expand(outputs, -1).contiguous()
        else:
            self._check_no_zeros(module)
        group = scheme.inputs or inputs
        groups = self._order(f"{module}.weight_g_idx", inputs, group, scales.shape[1])
        return IntMatrix(integers, scales, zeros, 8, group, groups)

    def _check_no_zeros(self, module: str) -> None:
        """Check that a module whose format has no zero points has none in its file but zeros.

        Raises UnsupportedModel: when there are others, by which the numbers would differ.
        """
        name = f"{module}.weight_zero_point"
        if name in self._files and bool(self._tensor(name).float().any()):
            raise UnsupportedModel(f"{name} {NOT_SYMMETRIC}")

    def _scales(self, module: str, schemes: Sequence[Scheme], outputs: int, inputs: int) -> tuple[Scheme, Tensor]:
        """Return which of the formats of integers a module has, and its scales [out, G].

        Formats may differ in zero points alone: a module that has some is of one that is not symmetric.

        outputs, inputs: the shape of the matrix.
        """
        has_zeros = f"{module}.weight_zero_point" in self._files
        shapes: dict[tuple[int, ...], Scheme] = {}
        for scheme in sorted(schemes, key=lambda each: each.symmetric is not has_zeros):  # those that fit come last
            if scheme.rows <= 1:
                shapes |= dict.fromkeys(_scale_shapes(scheme, outputs, inputs), scheme)
        name = f"{module}.weight_scale"
        scales = _finite(name, self._take(name, shapes, FLOATS))
        scheme = shapes[tuple(scales.shape)]
        num_groups = -(-inputs // (scheme.inputs or inputs))
        return scheme, scales.reshape(-1, num_groups).expand(outputs, num_groups).contiguous()


def _scale_shapes(scheme: Scheme, outputs: int, inputs: int) -> list[tuple[int, ...]]:
    """Return the shapes that the scales of a matrix may have.

    outputs, inputs: the shape of the matrix.
    """
    rows = 1 if scheme.rows == 0 else -(-outputs // scheme.rows)
    groups = 1 if scheme.inputs == 0 else -(-inputs // scheme.inputs)
    if (rows, groups) == (1, 1):
        return [(), (1,), (1, 1)]
    return [(rows, groups), (rows,)] if groups == 1 else [(rows, groups)]


def _groups(name: str, scheme: Scheme, inputs: int) -> tuple[int, int]:
    """Return the number of inputs of a group, and the number of groups."""
    group = scheme.inputs or inputs
    return group, math.ceil(inputs / group)


def _finite(name: str, scales: Tensor) -> Tensor:
    """Return scales in float32.

    Raises UnsupportedModel: when one is not a finite number.
    """
    found = scales.float()
    if not bool(found.isfinite().all()):
        raise UnsupportedModel(f"{name} has numbers that are not finite")
    return found
