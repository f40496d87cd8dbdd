"""An adapter as PEFT saves it (`adapter_config.json`, `adapter_model.safetensors`): its ranks, scalings and tensors.

Strict: a file is taken whole or refused with the list of all that doesn't fit. Reads the weights only to see that they
are finite, and loads none; knows nothing of devices or of how a model is configured.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO

import msgspec

from adapters.errors import AdapterRejected
from adapters.patterns.module_names import (
    ModuleKey,
    is_of_expert,
    is_router,
    module_key,
    module_name,
    num_experts_of,
    parameter_of_experts,
)
from adapters.peft_config import CONFIG_NAME, LoraConfig, RankAndScaling, read_config
from adapters.safe_file import open_regular
from adapters.safetensors_header import TensorInfo, iter_tensor_bytes, read_header
from adapters.values import sum_of_squares

WEIGHTS_NAME = "adapter_model.safetensors"
FILE_NAMES = (CONFIG_NAME, WEIGHTS_NAME)

_TENSOR_NAME = re.compile(r"base_model\.model\.([A-Za-z0-9_.]{1,300})\.lora_(A|B)(?:\.default)?\.weight")


_EXPERTS, _INNER = "experts", "base_layer"
_PARAMETERS = ("gate_up_proj", "down_proj")
"""Parameters with a matrix of each expert, in the order in which PEFT wraps their module: the last one outermost."""
MOST_EXPERTS = 1 << 12
_ROUTER = "a router of experts, on which no adapter is taken"


class AdapterModule(msgspec.Struct, frozen=True):
    """LoRA on one linear: y += scaling * (x @ a.T) @ b.T, with a of shape [rank, in] and b of shape [out, rank].

    On a parameter with a matrix of each of E experts, a has the shape [E * rank, in], expert by expert, and b the shape
    [out, rank * E], in which the E columns of one rank are neighbours, as PEFT has them.
    """

    layer: int
    projection: str
    """The short name of the linear (`adapters.patterns.module_names`)."""
    rank: int
    scaling: float
    a: TensorInfo
    b: TensorInfo


class AdapterFile(msgspec.Struct, frozen=True):
    """The content of an adapter's folder: its modules in the order of layer and projection."""

    rank_max: int
    modules: tuple[AdapterModule, ...]


@contextmanager
def open_files(folder: Path) -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """Open the configuration and the weights of an adapter's folder for reading, within a context.

    Raises as `open_regular`.
    """
    with ExitStack() as stack:
        config, weights = (stack.enter_context(open_regular(folder / name)) for name in FILE_NAMES)
        yield config, weights


def read_adapter(folder: Path) -> AdapterFile:
    """Read and check both files of an adapter; whether the adapter fits a base model is for `check_fit` to say.

    Raises AdapterRejected: when something is wrong; the error has all mismatches of the first stage that finds any: the
    configuration, the tensors' header, their names and shapes, their values.
    """
    with open_files(folder) as (config, weights):
        adapter = describe(config, weights)
        tensors = [side for module in adapter.modules for side in (module.a, module.b)]
        check_finite({tensor.name: tensor_norm(weights, tensor) for tensor in tensors})
    return adapter


def read_description(folder: Path) -> AdapterFile:
    """Read an adapter as `read_adapter` does, but leave the tensors' values to the caller to check."""
    with open_files(folder) as (config, weights):
        return describe(config, weights)


def describe(config_file: BinaryIO, weights_file: BinaryIO) -> AdapterFile:
    """Read two open files as `read_description` does."""
    config = read_config(config_file)
    ranks = RankAndScaling(config)
    header = read_header(weights_file, WEIGHTS_NAME)
    pairs, reasons = _pair_tensors(header)
    modules = []
    for (layer, projection), pair in sorted(pairs.items()):
        path = module_name(layer, projection)
        parameter = ""
        if projection.rpartition(".")[2] in (_EXPERTS, _INNER):
            parameter, why = _parameter_of(layer, projection, pairs, config)
            if why:
                reasons.append(f"{path}: {why}")
                continue
            path = f"{path.removesuffix(f'.{_INNER}')}.{parameter}"
        rank, scaling = ranks.of_module(path)
        contradiction = config.contradiction(layer, path, of_parameter=bool(parameter))
        if contradiction and is_router(projection):
            contradiction = f"is {_ROUTER}"
        num_experts = _num_experts(pair, rank) if parameter else 1
        errors = [contradiction] if contradiction else _pair_errors(pair, rank, num_experts)
        reasons += [f"{path}: {error}" for error in errors]
        if not errors:
            if parameter:
                projection = parameter_of_experts(projection.removesuffix(f".{_INNER}"), num_experts, parameter)
            modules.append(AdapterModule(layer, projection, rank, scaling, pair["A"], pair["B"]))
    modules.sort(key=lambda module: (module.layer, module.projection))
    if not header:
        reasons.append(f"{WEIGHTS_NAME} holds no tensors")
    if reasons:
        raise AdapterRejected(reasons)
    return AdapterFile(max(module.rank for module in modules), tuple(modules))


def _pair_tensors(header: Mapping[str, TensorInfo]) -> tuple[dict[ModuleKey, dict[str, TensorInfo]], list[str]]:
    """Return the tensors by module and side ("A", "B"), and the reasons why others have no place."""
    pairs: dict[ModuleKey, dict[str, TensorInfo]] = {}
    reasons = []
    for name, tensor in header.items():
        match = _TENSOR_NAME.fullmatch(name)
        key = None if match is None else module_key(match[1])
        if match is None or key is None:
            reasons.append(f"tensor {name[:200]!r} is not lora_A or lora_B of a layer's projection")
            continue
        pair = pairs.setdefault(key, {})
        if match[2] in pair:
            reasons.append(f"{match[1]}: lora_{match[2]} is there twice")
        pair[match[2]] = tensor
    return pairs, reasons


def _parameter_of(
    layer: int, projection: str, pairs: Mapping[ModuleKey, object], config: LoraConfig
) -> tuple[str, str]:
    """Return which parameter of experts the tensors of a module are for; "", and the reason, where that is unclear.

    The reason is "" where the parameter is clear.

    PEFT wraps the experts once for each parameter that is targeted; the inner wrapper's tensors have `base_layer`.
    """
    is_inner = projection.endswith(f".{_INNER}")
    outer = projection.removesuffix(f".{_INNER}")
    targeted = {name.rpartition(".")[2] for name in config.target_parameters or ()}
    if unknown := sorted(name for name in config.target_parameters or () if name.rpartition(".")[2] not in _PARAMETERS):
        of_router = f", of {_ROUTER}" if is_router(unknown[0]) else ""
        supported = ", ".join(_PARAMETERS)
        return "", f"{CONFIG_NAME}: target_parameters has {unknown[0][:100]!r}{of_router}; supported: {supported}"
    both = is_inner or (layer, f"{outer}.{_INNER}") in pairs
    if both and (len(targeted) < 2 or (layer, outer) not in pairs):
        return "", "its tensors are for two parameters, one of which is not targeted or not there"
    if both:
        return _PARAMETERS[0 if is_inner else 1], ""
    if len(targeted) != 1:
        return "", f"{CONFIG_NAME}: target_parameters names {len(targeted)} parameters, but the tensors are for one"
    return targeted.pop(), ""


def _num_experts(pair: Mapping[str, TensorInfo], rank: int) -> int:
    """Return the number of experts that lora_A has ranks for; 1 where no number fits, or one above MOST_EXPERTS."""
    rows = pair["A"].shape[0] if "A" in pair and pair["A"].shape else 0
    return rows // rank if rows and rows % rank == 0 and rows // rank <= MOST_EXPERTS else 1


def _pair_errors(pair: Mapping[str, TensorInfo], rank: int, num_experts: int) -> list[str]:
    """Return the faults of the shapes of a module's lora_A, which must be [rank, in], and lora_B, [out, rank].

    For a parameter of experts, rank * num_experts takes the place of rank in the shapes. The sizes in and out are not
    checked: only the base model knows what they must be.
    """
    errors = [f"lora_{side} is missing" for side in ("A", "B") if side not in pair]
    for side, axis, meaning in (("A", 0, "[rank, in]"), ("B", 1, "[out, rank]")):
        if side not in pair:
            continue
        shape = pair[side].shape
        if len(shape) != 2 or 0 in shape:
            errors.append(f"lora_{side} has shape {list(shape)}, not {meaning}")
        elif shape[axis] != rank * num_experts:
            of_experts = f" for each of {num_experts} experts" if num_experts > 1 else ""
            errors.append(f"lora_{side} has rank {shape[axis]}, the configuration says {rank}{of_experts}")
    return errors


def tensor_norm(weights: BinaryIO, tensor: TensorInfo) -> float:
    """Return the tensor's Frobenius norm, in fp64; NaN or infinity if, and only if, a value is NaN or infinity."""
    return math.sqrt(sum(sum_of_squares(chunk, tensor.dtype) for chunk in iter_tensor_bytes(weights, tensor)))


def check_finite(norms: Mapping[str, float]) -> None:
    """Check that every value of the tensors is a finite number.

    norms: the Frobenius norm of each tensor, by the tensor's name.

    Raises AdapterRejected: when a tensor holds NaN or infinity; the error has each such tensor.
    """
    reasons = [f"tensor {name!r} holds NaN or infinity" for name, norm in norms.items() if not math.isfinite(norm)]
    if reasons:
        raise AdapterRejected(reasons)


def check_fit(
    adapter: AdapterFile,
    targets: Mapping[str, tuple[int, int]],
    num_layers: int,
    layers_of: Mapping[str, Collection[int]] = MappingProxyType({}),
) -> None:
    """Check that the base model has a place for every module.

    targets: {projection: (in_features, out_features)} of the base model, the same in each of its num_layers layers.
    layers_of: the layers that have a projection, for each projection that not all layers have.

    Raises AdapterRejected: when the base model has no place for a module; the error has each such module.
    """
    reasons = []
    for module in adapter.modules:
        where = f"layer {module.layer} {module.projection}"
        if module.layer >= num_layers:
            reasons.append(f"{where}: the base model has {num_layers} layers")
        elif module.projection not in targets:
            reasons.append(f"{where}: {_why_nowhere(module.projection, targets)}")
        elif module.layer not in layers_of.get(module.projection, range(num_layers)):
            reasons.append(f"{where}: the base model takes no adapter there")
        else:
            found = (module.a.shape[1], module.b.shape[0])
            if found != targets[module.projection]:
                expected = targets[module.projection]
                reasons.append(f"{where}: made for (in, out) = {found}, the base model has {expected}")
    if reasons:
        raise AdapterRejected(reasons)


def _why_nowhere(projection: str, targets: Mapping[str, object]) -> str:
    """Return why a base model with these targets has no place for an adapter on a projection."""
    if is_router(projection):
        return f"is {_ROUTER}"
    made_for = num_experts_of(projection)
    numbers = {number for number in map(num_experts_of, targets) if number}
    if is_of_expert(projection) and not numbers:
        return "the base model takes no adapter on experts"
    if made_for and made_for not in numbers:
        return f"made for {made_for} experts, the base model has {', '.join(map(str, numbers))}"
    return "the base model takes no adapter there"


def check_rank(adapter: AdapterFile, max_rank: int) -> None:
    """Check the adapter's largest rank.

    Raises AdapterRejected: when the rank is above max_rank.
    """
    if adapter.rank_max > max_rank:
        raise AdapterRejected(
            [f"the adapter's rank is {adapter.rank_max}, above LORIKEET_MAX_ADAPTER_RANK, which is {max_rank}"]
        )
