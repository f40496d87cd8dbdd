"""An adapter as PEFT saves it (`adapter_config.json`, `adapter_model.safetensors`): its ranks, scalings and tensors.

Strict: a file is taken whole or refused with the list of all that doesn't fit. Reads the weights only to see that they
are finite, and loads none; knows nothing of devices or of how a model is configured.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
import numpy as np

from adapters.errors import AdapterRejected
from adapters.peft_config import CONFIG_NAME, RankAndScaling, read_config
from adapters.safetensors_header import TensorInfo, iter_tensor_bytes, read_header

WEIGHTS_NAME = "adapter_model.safetensors"

_BLOCK_OF_PROJECTION = {
    "q_proj": "self_attn",
    "k_proj": "self_attn",
    "v_proj": "self_attn",
    "o_proj": "self_attn",
    "gate_proj": "mlp",
    "up_proj": "mlp",
    "down_proj": "mlp",
}
_TENSOR_NAME = re.compile(
    r"base_model\.model\.(model\.layers\.(0|[1-9][0-9]{0,2})\.(self_attn|mlp)\.([a-z]+_proj))"
    r"\.lora_(A|B)(?:\.default)?\.weight"
)
# All exponent bits set is an infinity or a NaN: (integer of the element's size, mask) by dtype.
_EXPONENT = {"F32": ("<u4", 0x7F800000), "F16": ("<u2", 0x7C00), "BF16": ("<u2", 0x7F80)}

ModuleKey = tuple[int, str]


class AdapterModule(msgspec.Struct, frozen=True):
    """LoRA on one linear: y += scaling * (x @ a.T) @ b.T, with a of shape [rank, in] and b of shape [out, rank]."""

    layer: int
    projection: str
    rank: int
    scaling: float
    a: TensorInfo
    b: TensorInfo


class AdapterFile(msgspec.Struct, frozen=True):
    """What an adapter's folder holds: its modules in the order of layer and projection."""

    rank_max: int
    modules: tuple[AdapterModule, ...]


def read_adapter(folder: Path) -> AdapterFile:
    """Read and check both files of an adapter; that it fits a base model is `check_fit`'s to say.

    Raises AdapterRejected with all mismatches of the first stage that has any: the configuration, the tensors'
    header, their names and shapes, their values.
    """
    adapter = read_description(folder)
    _check_finite(folder / WEIGHTS_NAME, [side for module in adapter.modules for side in (module.a, module.b)])
    return adapter


def read_description(folder: Path) -> AdapterFile:
    """As `read_adapter`, but the tensors' values are the caller's to check."""
    config = read_config(folder / CONFIG_NAME)
    ranks = RankAndScaling(config)
    header = read_header(folder / WEIGHTS_NAME)
    pairs, reasons = _pair_tensors(header)
    ranks.check_cost(len(pairs))
    modules = []
    for (layer, projection), pair in sorted(pairs.items()):
        path = f"model.layers.{layer}.{_BLOCK_OF_PROJECTION[projection]}.{projection}"
        rank, scaling = ranks.of(path)
        contradiction = config.contradiction(layer, path)
        errors = [contradiction] if contradiction else _pair_errors(pair, rank)
        reasons += [f"{path}: {error}" for error in errors]
        if not errors:
            modules.append(AdapterModule(layer, projection, rank, scaling, pair["A"], pair["B"]))
    if not header:
        reasons.append(f"{WEIGHTS_NAME} holds no tensors")
    if reasons:
        raise AdapterRejected(reasons)
    return AdapterFile(max(module.rank for module in modules), tuple(modules))


def _pair_tensors(header: Mapping[str, TensorInfo]) -> tuple[dict[ModuleKey, dict[str, TensorInfo]], list[str]]:
    """Tensors by module and side ("A", "B"), and what can't be placed."""
    pairs: dict[ModuleKey, dict[str, TensorInfo]] = {}
    reasons = []
    for name, tensor in header.items():
        match = _TENSOR_NAME.fullmatch(name)
        if match is None or _BLOCK_OF_PROJECTION.get(match[4]) != match[3]:
            reasons.append(f"tensor {name[:200]!r} is not lora_A or lora_B of a layer's projection")
            continue
        pair = pairs.setdefault((int(match[2]), match[4]), {})
        if match[5] in pair:
            reasons.append(f"{match[1]}: lora_{match[5]} is there twice")
        pair[match[5]] = tensor
    return pairs, reasons


def _pair_errors(pair: Mapping[str, TensorInfo], rank: int) -> list[str]:
    """a must be [rank, in] and b [out, rank]; what the sizes in and out must be, only the base model knows."""
    errors = [f"lora_{side} is missing" for side in ("A", "B") if side not in pair]
    for side, axis, meaning in (("A", 0, "[rank, in]"), ("B", 1, "[out, rank]")):
        if side not in pair:
            continue
        shape = pair[side].shape
        if len(shape) != 2 or 0 in shape:
            errors.append(f"lora_{side} has shape {list(shape)}, not {meaning}")
        elif shape[axis] != rank:
            errors.append(f"lora_{side} has rank {shape[axis]}, the configuration says {rank}")
    return errors


def _check_finite(path: Path, tensors: Iterable[TensorInfo]) -> None:
    reasons = []
    for tensor in tensors:
        integer, mask = _EXPONENT[tensor.dtype]
        if any(bool(np.any(np.frombuffer(chunk, integer) & mask == mask)) for chunk in iter_tensor_bytes(path, tensor)):
            reasons.append(f"tensor {tensor.name!r} holds NaN or infinity")
    if reasons:
        raise AdapterRejected(reasons)


def check_fit(adapter: AdapterFile, targets: Mapping[str, tuple[int, int]], num_layers: int) -> None:
    """Raises AdapterRejected with every module that the base model has no place for.

    targets: {projection: (in_features, out_features)} of the base model, the same in each of its num_layers layers.
    """
    reasons = []
    for module in adapter.modules:
        where = f"layer {module.layer} {module.projection}"
        if module.layer >= num_layers:
            reasons.append(f"{where}: the base model has {num_layers} layers")
        elif module.projection not in targets:
            reasons.append(f"{where}: the base model takes no adapter there")
        else:
            found = (module.a.shape[1], module.b.shape[0])
            if found != targets[module.projection]:
                expected = targets[module.projection]
                reasons.append(f"{where}: made for (in, out) = {found}, the base model has {expected}")
    if reasons:
        raise AdapterRejected(reasons)


def check_rank(adapter: AdapterFile, max_rank: int) -> None:
    """Raises AdapterRejected above max_rank, as configured."""
    if adapter.rank_max > max_rank:
        raise AdapterRejected([f"its rank is {adapter.rank_max}; LORIKEET_MAX_ADAPTER_RANK is {max_rank}"])
