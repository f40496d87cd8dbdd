"""Tiny quantized checkpoints in the formats of the hub's tools, packed bit by bit as the formats' own pages say.

Nothing here is shared with the engine's readers. Matrices are rounded to the nearest number that a format has.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from tests.engine.models.tiny import save_tiny

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
WIDE = {
    "hidden_size": 256,
    "intermediate_size": 320,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_hidden_layers": 2,
}
"""Sizes of a model in which blocks of 128 by 128 cover some matrices only partly."""

Ints = NDArray[np.int64]
Tensors = dict[str, Tensor]
Pack = Callable[[str, Tensor], tuple[Tensors, Tensor]]  # of a module: its tensors, and the numbers they stand for


class RoundedMatrix(NamedTuple):
    """A matrix rounded to integers.

    Integers [out, in] in 0..2^bits - 1, scales and zero points [out, G], and the group [in] of each input.
    """

    integers: Ints
    scales: Tensor
    zeros: Ints
    groups: Ints

    def numbers(self) -> Tensor:
        q, z = torch.from_numpy(self.integers).float(), torch.from_numpy(self.zeros).float()
        of = torch.from_numpy(self.groups)
        return (q - z[:, of]) * self.scales.float()[:, of]


def rounded(
    weight: Tensor,
    group: int,
    *,
    bits: int = 4,
    symmetric: bool = False,
    order: Tensor | None = None,
    dtype: torch.dtype = torch.float16,
) -> RoundedMatrix:
    """Round a matrix to integers in groups of inputs (-1: one for all).

    order: the order of the inputs, each stretch of which is a group; None: as they lie. bits: the bits of an integer.
    symmetric: True: zero points are in the middle of the range. dtype: the dtype of scales.
    """
    inputs = weight.shape[1]
    size, top = (inputs if group < 0 else group), (1 << bits) - 1
    groups = np.zeros(inputs, dtype=np.int64)
    groups[np.arange(inputs) if order is None else order.numpy()] = np.arange(inputs) // size
    of_groups = [weight[:, torch.from_numpy(groups == g)] for g in range(int(groups.max()) + 1)]
    low = torch.stack([each.amin(1).clamp(max=0) for each in of_groups], 1)
    high = torch.stack([each.amax(1).clamp(min=0) for each in of_groups], 1)
    if symmetric:
        scales = (torch.maximum(-low, high) * 2 / top).to(dtype)
        zeros = np.full(tuple(scales.shape), (top + 1) // 2, dtype=np.int64)
    else:
        scales = ((high - low) / top).to(dtype)
        zeros = (-low / scales.float()).round().clamp(1, top).numpy().astype(np.int64)
    of = torch.from_numpy(groups)
    q = (weight / scales.float()[:, of]).round().numpy().astype(np.int64) + zeros[:, groups]
    return RoundedMatrix(q.clip(0, top), scales, zeros, groups)


def words(integers: Ints, bits: int, places: tuple[int, ...] | None = None) -> Tensor:
    """Pack the integers of each row into 32-bit words, the i-th of a word at its place.

    bits: the bits of an integer. places: the place of each integer in a word; None: in order.
    """
    each = 32 // bits
    padded = np.pad(integers, ((0, 0), (0, -integers.shape[1] % each)))
    out = np.zeros((padded.shape[0], padded.shape[1] // each), dtype=np.uint32)
    for i in range(each):
        place = i if places is None else places[i]
        out |= padded[:, place::each].astype(np.uint32) << np.uint32(bits * i)
    return torch.from_numpy(out.view(np.int32))


AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def awq(group: int, version: str = "gemm") -> Pack:
    def pack(name: str, weight: Tensor) -> tuple[Tensors, Tensor]:
        found = rounded(weight, group)
        if version == "gemv":
            num_groups, least = found.scales.shape[1], {32: 4, 64: 2}.get(group, 1)
            width = math.ceil(math.ceil(num_groups / 8) / least) * least
            scales = torch.zeros(weight.shape[0], width * 8, dtype=torch.float16)
            scales[:, :num_groups] = found.scales
            zeros = np.pad(found.zeros, ((0, 0), (0, width * 8 - num_groups)))
            tensors = {"qweight": words(found.integers, 4), "qzeros": words(zeros, 4), "scales": scales}
        else:
            tensors = {
                "qweight": words(found.integers.T, 4, AWQ_ORDER),
                "qzeros": words(found.zeros.T, 4, AWQ_ORDER),
                "scales": found.scales.T.contiguous(),
            }
        return tensors, found.numbers()

    return pack


def gptq(
    group: int, *, bits: int = 4, symmetric: bool = True, ordered: bool = False, first: bool = True, bias: bool = False
) -> Pack:
    def pack(name: str, weight: Tensor) -> tuple[Tensors, Tensor]:
        generator = torch.Generator().manual_seed(len(name))
        order = torch.randperm(weight.shape[1], generator=generator) if ordered else None
        found = rounded(weight, group, bits=bits, symmetric=symmetric, order=order)
        kept = found.zeros - 1 if first else found.zeros
        tensors = {
            "qweight": words(found.integers, bits).T.contiguous(),
            "qzeros": words(kept.T, bits),
            "scales": found.scales.T.contiguous(),
            "g_idx": torch.from_numpy(found.groups.astype(np.int32)),
        }
        if bias:
            tensors["bias"] = torch.zeros(weight.shape[0], dtype=torch.float16)
        return tensors, found.numbers()

    return pack


def packed_integers(group: int, *, bits: int = 4, symmetric: bool = True, ordered: bool = False) -> Pack:
    """Return the packing `pack-quantized` of compressed-tensors.

    group: the inputs of a group; -1: all. bits: the bits of an integer. symmetric: True: there are no zero points.
    ordered: True: a tensor says the group of each input (act-order).
    """

    def pack(name: str, weight: Tensor) -> tuple[Tensors, Tensor]:
        generator = torch.Generator().manual_seed(len(name))
        order = torch.randperm(weight.shape[1], generator=generator) if ordered else None
        found = rounded(weight, group, bits=bits, symmetric=symmetric, order=order, dtype=torch.bfloat16)
        tensors = {
            "weight_packed": words(found.integers, bits),
            "weight_scale": found.scales,
            "weight_shape": torch.tensor(weight.shape),
        }
        if not symmetric:
            tensors["weight_zero_point"] = words(found.zeros.T, bits).T.contiguous()
        if ordered:
            tensors["weight_g_idx"] = torch.from_numpy(found.groups.astype(np.int32))
        return tensors, found.numbers()

    return pack


def whole_integers(symmetric: bool = True, *, group: int = -1) -> Pack:
    """Return the packing `int-quantized` of compressed-tensors, with a byte for each number.

    group: inputs of a group; -1: all. symmetric: True: there are no zero points.
    """

    def pack(name: str, weight: Tensor) -> tuple[Tensors, Tensor]:
        generator = torch.Generator().manual_seed(len(name))
        order = None if group < 0 else torch.randperm(weight.shape[1], generator=generator)
        found = rounded(weight, group, bits=8, symmetric=symmetric, order=order, dtype=torch.bfloat16)
        tensors = {
            "weight": torch.from_numpy((found.integers - 128).astype(np.int8)),
            "weight_scale": found.scales,
        }
        if not symmetric:
            tensors["weight_zero_point"] = torch.from_numpy((found.zeros - 128).astype(np.int8))
        if order is not None:
            tensors["weight_g_idx"] = torch.from_numpy(found.groups.astype(np.int32))
        return tensors, found.numbers()

    return pack


def float8(
    rows: int,
    inputs: int,
    scale_name: str = "weight_scale",
    *,
    static: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Pack:
    """Return the packing of numbers in e4m3.

    rows, inputs: the size of the blocks that share a scale; 0: all. scale_name: the end of the name of the scales.
    static: True: the file has scales of inputs, too. dtype: the dtype of scales.
    """

    def pack(name: str, weight: Tensor) -> tuple[Tensors, Tensor]:
        height, width = rows or weight.shape[0], inputs or weight.shape[1]
        out = torch.zeros(weight.shape, dtype=torch.float8_e4m3fn)
        numbers = torch.zeros(weight.shape)
        scales = torch.zeros(-(-weight.shape[0] // height), -(-weight.shape[1] // width))
        for i in range(scales.shape[0]):
            for j in range(scales.shape[1]):
                part = slice(i * height, (i + 1) * height), slice(j * width, (j + 1) * width)
                scale = (weight[part].abs().max() / 448.0).to(dtype).float()
                scales[i, j] = scale
                out[part] = (weight[part] / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
                numbers[part] = out[part].float() * scale
        kept = scales.reshape(()) if not rows and not inputs else scales
        tensors = {"weight": out, scale_name: kept.to(dtype)}
        if static:
            tensors["input_scale"] = torch.tensor(0.05)
        return tensors, numbers

    return pack


def compressed_tensors_config(weights: Mapping[str, Any], form: str, **group: Any) -> dict[str, Any]:
    """Return a config of compressed-tensors with one group."""
    defaults = {"dynamic": False, "symmetric": True, "observer": "minmax", "observer_kwargs": {}, "actorder": None}
    return {
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": defaults | dict(weights)} | group},
        "format": form,
        "global_compression_ratio": 1.5,
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
    }


INPUTS = {"dynamic": True, "num_bits": 8, "strategy": "token", "symmetric": True, "type": "float"}
GPTQ: dict[str, Any] = {
    "quant_method": "gptq",
    "bits": 4,
    "group_size": 32,
    "desc_act": False,
    "sym": True,
    "lm_head": False,
    "pack_dtype": "int32",
    "damp_percent": 0.01,
    "static_groups": False,
    "true_sequential": True,
    "meta": {"quantizer": ["gptqmodel:2.0.0"], "uri": "https://github.com/modelcloud/gptqmodel"},
}
AWQ: dict[str, Any] = {
    "quant_method": "awq",
    "bits": 4,
    "group_size": 32,
    "version": "gemm",
    "zero_point": True,
    "modules_to_not_convert": None,
}
FP8: dict[str, Any] = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3"}
BLOCKS = FP8 | {"weight_block_size": [128, 128]}

METHODS: dict[str, tuple[dict[str, Any], Pack]] = {
    "awq-32": (AWQ, awq(32)),
    "awq-row": (AWQ | {"group_size": -1}, awq(-1)),
    "awq-gemv": (AWQ | {"version": "GEMV"}, awq(32, "gemv")),
    "gptq-32": (GPTQ | {"checkpoint_format": "gptq"}, gptq(32)),
    "gptq-bias": (GPTQ, gptq(32, bias=True)),
    "gptq-asymmetric": (GPTQ | {"sym": False}, gptq(32, symmetric=False)),
    "gptq-v2": (
        GPTQ | {"checkpoint_format": "gptq_v2", "sym": False},
        gptq(32, symmetric=False, first=False),
    ),
    "gptq-order": (GPTQ | {"desc_act": True}, gptq(32, ordered=True)),
    "gptq-order-asymmetric": (
        GPTQ | {"desc_act": True, "sym": False, "group_size": 16},
        gptq(16, symmetric=False, ordered=True),
    ),
    "gptq-8": (GPTQ | {"bits": 8}, gptq(32, bits=8)),
    "packed-32": (
        compressed_tensors_config(
            {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}, "pack-quantized"
        ),
        packed_integers(32),
    ),
    "packed-asymmetric": (
        compressed_tensors_config(
            {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": False}, "pack-quantized"
        ),
        packed_integers(32, symmetric=False),
    ),
    "packed-order": (
        compressed_tensors_config(
            {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "actorder": "group"}, "pack-quantized"
        ),
        packed_integers(32, ordered=True),
    ),
    "packed-row": (
        compressed_tensors_config({"num_bits": 4, "type": "int", "strategy": "channel"}, "pack-quantized"),
        packed_integers(-1),
    ),
    "packed-8": (
        compressed_tensors_config({"num_bits": 8, "type": "int", "strategy": "channel"}, "pack-quantized"),
        packed_integers(-1, bits=8),
    ),
    "int8": (
        compressed_tensors_config({"num_bits": 8, "type": "int", "strategy": "channel"}, "int-quantized"),
        whole_integers(),
    ),
    "int8-asymmetric": (
        compressed_tensors_config(
            {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": False}, "int-quantized"
        ),
        whole_integers(False),
    ),
    "int8-order": (
        compressed_tensors_config(
            {"num_bits": 8, "type": "int", "strategy": "group", "group_size": 32, "actorder": "group"}, "int-quantized"
        ),
        whole_integers(group=32),
    ),
    "float-rows": (
        compressed_tensors_config(
            {"num_bits": 8, "type": "float", "strategy": "channel"}, "float-quantized", input_activations=INPUTS
        ),
        float8(1, 0, dtype=torch.bfloat16),
    ),
    "float-tensor-static": (
        compressed_tensors_config(
            {"num_bits": 8, "type": "float", "strategy": "tensor"},
            "float-quantized",
            input_activations=INPUTS | {"dynamic": False, "strategy": "tensor"},
        ),
        float8(0, 0, static=True),
    ),
    "float-blocks": (
        compressed_tensors_config(
            {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]}, "float-quantized"
        ),
        float8(128, 128, dtype=torch.bfloat16),
    ),
    "fp8-blocks": (BLOCKS | {"modules_to_not_convert": ["lm_head"]}, float8(128, 128, "weight_scale_inv")),
    "fp8-tensor": (FP8, float8(0, 0)),
    "fp8-static": (FP8 | {"activation_scheme": "static", "ignored_layers": ["lm_head"]}, float8(0, 0, static=True)),
    "modelopt": (
        {
            "quant_method": "modelopt",
            "quant_algo": "FP8",
            "ignore": ["lm_head"],
            "producer": {"name": "modelopt", "version": "0.29.0"},
        },
        float8(0, 0, static=True),
    ),
}
SCALES_OF_CACHE = ("float-tensor-static", "modelopt")
"""The names of checkpoints that also have scales for the KV cache."""


def save_packed(
    method: str, folder: Path, family: str = "llama-head-dim", sizes: Mapping[str, Any] = SIZES
) -> PreTrainedModel:
    """Write a tiny checkpoint in a format; return a float32 model with the numbers that the checkpoint represents.

    family: the key of the model's family in `tiny`. sizes: the sizes of the model.
    """
    config, pack = METHODS[method]
    model = save_tiny(family, folder, dict(sizes))
    path = folder / "model.safetensors"
    numbers: Tensors = {}
    tensors: Tensors = {}
    for name, tensor in load_file(path).items():
        module, _, last = name.rpartition(".")
        if last == "weight" and tensor.dim() == 2 and "_proj" in module:
            found, numbers[name] = pack(module, tensor)
            tensors |= {f"{module}.{key}": value for key, value in found.items()}
            if method in SCALES_OF_CACHE and module.endswith(("k_proj", "v_proj")):
                tensors[f"{module}.{module[-6]}_scale"] = torch.tensor(1.0)
        else:
            tensors[name] = numbers[name] = tensor
    save_file(tensors, path)
    write_config(folder, config)
    model.load_state_dict(numbers, strict=False)
    return model


def write_config(folder: Path, quantization_config: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": quantization_config}))
