"""Reads `quantization_config`: the format in which a checkpoint holds matrices in few bits (FP8, AWQ, GPTQ and others).

A table lists the keys of each method, and the values that each key may have. Any other key or value is refused by name,
since it may change the meaning of the stored numbers. Reads configuration alone, and no tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from engine.config.model import Quantized, Scheme, UnsupportedModel

MODELOPT_FILE = "hf_quant_config.json"
GROUP_SIZES = (-1, 16, 32, 64, 128, 256, 512, 1024)
MOST_BLOCK = 1 << 16
SHOWN = 80

Raw = Mapping[str, Any]
Check = Callable[[Any], bool]


def _takes_anything(value: Any) -> bool:
    return True


def _one_of(*allowed: Any) -> Check:
    return lambda value: any(type(value) is type(each) and value == each for each in allowed)


def _is_names(value: Any) -> bool:
    return value is None or (isinstance(value, list) and all(isinstance(each, str) for each in value))


def _is_empty(value: Any) -> bool:
    return not value


def _is_flag(value: Any) -> bool:
    return value is None or type(value) is bool


_FP8: dict[str, Check] = {
    "quant_method": _takes_anything,
    "activation_scheme": _one_of("dynamic", "static"),
    "fmt": _one_of("e4m3", "float8_e4m3fn"),
    "weight_block_size": _takes_anything,  # read below
    "modules_to_not_convert": _is_names,
    "ignored_layers": _is_names,
    "modules_to_convert": _is_empty,
    "scale_fmt": _one_of(None, "float", "ue8m0"),
    "expert_dtype": _one_of(None, "fp8"),
    "kv_cache_scheme": _one_of(None, "static", "dynamic"),
    "dequantize": _is_flag,
}

# Of 4-bit integers by AutoAWQ, and of the same by GPTQModel. What concerns the calibration or a server says nothing
# about the numbers.
_BY_GPTQMODEL: dict[str, Check] = {
    "lm_head": _is_flag,
    "pack_dtype": _one_of(None, "int32"),
    "method": _takes_anything,
    "meta": _takes_anything,
    "backend": lambda value: value != "llm-awq",
    "dynamic": lambda value: not value or (isinstance(value, dict) and all(key.startswith("-:") for key in value)),
    "adapter": _is_empty,
    "is_marlin_format": _is_empty,
    "planar": _is_empty,
    "rotation": _is_empty,
    **dict.fromkeys(
        ("damp_percent", "damp_auto_increment", "static_groups", "true_sequential", "mse", "act_group_aware"),
        _takes_anything,
    ),
    **dict.fromkeys(
        ("tokenizer", "dataset", "batch_size", "pad_token_id", "max_input_length", "model_seqlen"), _takes_anything
    ),
    **dict.fromkeys(("model_name_or_path", "model_file_base_name", "block_name_to_quantize"), _takes_anything),
    **dict.fromkeys(
        ("module_name_preceding_first_block", "modules_in_block_to_quantize", "cache_block_outputs"), _takes_anything
    ),
    **dict.fromkeys(
        ("use_exllama", "disable_exllama", "exllama_config", "use_cuda_fp16", "offload_to_disk"), _takes_anything
    ),
    **dict.fromkeys(
        ("do_fuse", "fuse_max_seq_len", "modules_to_fuse", "hyb_act", "failsafe", "fallback"), _takes_anything
    ),
}
_AWQ = _BY_GPTQMODEL | {
    "quant_method": _takes_anything,
    "bits": _one_of(4),
    "group_size": _one_of(*GROUP_SIZES),
    "zero_point": _one_of(True),
    "version": lambda value: isinstance(value, str) and value.lower() in ("gemm", "gemv"),
    "format": lambda value: isinstance(value, str) and value.lower() in ("gemm", "gemv"),
    "checkpoint_format": lambda value: isinstance(value, str) and value.lower() in ("gemm", "gemv"),
    "modules_to_not_convert": _is_names,
    "sym": _is_flag,
    "desc_act": _one_of(None, False),
}
_GPTQ = _BY_GPTQMODEL | {
    "quant_method": _takes_anything,
    "bits": _one_of(4, 8),
    "group_size": _one_of(*GROUP_SIZES),
    "desc_act": _is_flag,
    "sym": _is_flag,
    "checkpoint_format": _one_of(None, "", "gptq", "gptq_v2"),
    "format": _one_of(None, "", "gptq", "gptq_v2"),
    "modules_to_not_convert": _is_names,
}
_COMPRESSED: dict[str, Check] = {
    "quant_method": _takes_anything,
    "config_groups": _takes_anything,  # read below
    "format": _one_of("float-quantized", "pack-quantized", "int-quantized", "naive-quantized", "mixed-precision"),
    "ignore": _is_names,
    "kv_cache_scheme": _takes_anything,
    "quantization_status": _one_of("compressed", "frozen"),
    "global_compression_ratio": _takes_anything,
    "sparsity_config": lambda value: not value or (isinstance(value, dict) and value.get("format") == "dense"),
    "transform_config": _is_empty,
    "moe_sparsity_config": _is_empty,
    "version": _takes_anything,
    "run_compressed": _takes_anything,
}
_GROUP: dict[str, Check] = {
    "targets": _is_names,
    "weights": _takes_anything,  # read below
    "input_activations": lambda value: value is None or isinstance(value, dict),  # inputs are computed with as they are
    "output_activations": _is_empty,
    "format": _one_of(None, "float-quantized", "pack-quantized", "int-quantized", "naive-quantized"),
}
_WEIGHTS: dict[str, Check] = {
    "num_bits": _one_of(4, 8),
    "type": _one_of("int", "float"),
    "strategy": _one_of(None, "tensor", "channel", "group", "block"),
    "group_size": _one_of(None, *GROUP_SIZES),
    "block_structure": _takes_anything,  # read below
    "symmetric": _is_flag,
    "dynamic": _one_of(None, False),
    "actorder": _one_of(None, False, True, "weight", "static", "group", "dynamic"),
    **dict.fromkeys(("observer", "observer_kwargs", "scale_dtype", "zp_dtype"), _takes_anything),
}
_MODELOPT: dict[str, Check] = {
    "quant_method": _takes_anything,
    "quant_algo": _one_of("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO"),
    "kv_cache_quant_algo": _one_of(None, "FP8"),
    "kv_cache_scheme": _takes_anything,
    "exclude_modules": _is_names,
    "ignore": _is_names,
    "config_groups": _takes_anything,
    "group_size": _takes_anything,
    "producer": _takes_anything,
}

_MXFP4: dict[str, Check] = {
    "quant_method": _takes_anything,
    "modules_to_not_convert": _is_names,
    "dequantize": _is_flag,
}

METHODS = ("fp8", "awq", "gptq", "compressed-tensors", "modelopt")
METHODS_OF_EXPERTS = ("mxfp4",)


def read_quantized(folder: Path, raw: Raw, *, has_experts: bool = False) -> Quantized | None:
    """Return the format in which a model's files hold its matrices; None if at most those of experts are in few bits.

    raw: the folder's `config.json`. has_experts: True for a model with experts: then only the experts' matrices may be
    in few bits, and `engine.models.expert_layout` reads them.

    Raises UnsupportedModel: if a format is not supported; the message names the key and its value.
    """
    found = raw.get("quantization_config")
    if found is None:
        return _by_modelopt(folder, has_experts=has_experts)
    if not isinstance(found, dict):
        raise UnsupportedModel("config.json: quantization_config must be an object")
    method = found.get("quant_method")
    where = "config.json: quantization_config"
    methods = METHODS_OF_EXPERTS if has_experts else METHODS
    if not isinstance(method, str) or method not in methods:
        raise UnsupportedModel(f"{where}: quant_method is {_shortened(method)}; supported: {', '.join(methods)}")
    if method == "compressed-tensors":
        _check(where, found, _COMPRESSED)
        return Quantized("compressed-tensors", _schemes(where, found))
    if method == "mxfp4":
        _check(where, found, _MXFP4)
        return None
    if method == "modelopt":
        _check(where, found, _MODELOPT)
        return _modelopt(where, found)
    if method == "fp8":
        _check(where, found, _FP8)
        block = found.get("weight_block_size")
        rows, inputs = (0, 0) if block is None else _block(where, "weight_block_size", block)
        return Quantized("fp8", (Scheme("float8", 8, rows, inputs, rounds_inputs=True),))
    _check(where, found, _AWQ if method == "awq" else _GPTQ, needed=("bits", "group_size"))
    group = max(found["group_size"], 0)
    if method == "awq":
        layout = str(found.get("version") or found.get("format") or found.get("checkpoint_format") or "gemm").lower()
        return Quantized("awq", (Scheme("int", 4, 1, group, symmetric=False),), "gemv" if layout == "gemv" else "gemm")
    is_second = "gptq_v2" in (found.get("checkpoint_format"), found.get("format"))
    scheme = Scheme(
        "int", found["bits"], 1, group, symmetric=bool(found.get("sym", True)), ordered=bool(found.get("desc_act"))
    )
    return Quantized("gptq", (scheme,), "gptq_v2" if is_second else "gptq")


def _by_modelopt(folder: Path, *, has_experts: bool) -> Quantized | None:
    """Return the quantization that ModelOpt's own file describes; None without the file.

    Older folders have that file beside a config that says nothing.

    has_experts: True: the model has experts, for which ModelOpt's formats are refused.
    """
    path = folder / MODELOPT_FILE
    try:
        found = msgspec.json.decode(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnsupportedModel(f"{MODELOPT_FILE} is not JSON: {error}") from None
    if has_experts:
        methods = ", ".join(METHODS_OF_EXPERTS)
        raise UnsupportedModel(f"{MODELOPT_FILE}: not supported for a model with experts; supported: {methods}")
    inner = found.get("quantization") if isinstance(found, dict) else None
    if not isinstance(inner, dict):
        raise UnsupportedModel(f"{MODELOPT_FILE}: quantization must be an object")
    _check(MODELOPT_FILE, inner, _MODELOPT)
    return _modelopt(MODELOPT_FILE, inner)


def _modelopt(where: str, found: Raw) -> Quantized:
    algorithm = found.get("quant_algo")
    if algorithm is None:
        raise UnsupportedModel(f"{where}: quant_algo is missing")
    rows, inputs = {"FP8": (0, 0), "FP8_PER_CHANNEL_PER_TOKEN": (1, 0), "FP8_PB_WO": (128, 128)}[algorithm]
    return Quantized("modelopt", (Scheme("float8", 8, rows, inputs, rounds_inputs=algorithm != "FP8_PB_WO"),))


def _schemes(where: str, found: Raw) -> tuple[Scheme, ...]:
    """Return the formats of compressed-tensors' groups of modules; each module's own tensors tell which one it has."""
    groups = found.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        raise UnsupportedModel(f"{where}: config_groups must be an object with a group at least")
    return tuple(_scheme(f"{where}: config_groups: {_shortened(name)}", group) for name, group in groups.items())


def _scheme(where: str, group: Any) -> Scheme:
    if not isinstance(group, dict):
        raise UnsupportedModel(f"{where} must be an object")
    _check(where, group, _GROUP)
    weights = group.get("weights")
    if not isinstance(weights, dict):
        raise UnsupportedModel(f"{where}: weights must be an object")
    where += ": weights"
    _check(where, weights, _WEIGHTS, needed=("num_bits", "type"))
    kind: Literal["float8", "int"] = "float8" if weights["type"] == "float" else "int"
    strategy, size = weights.get("strategy"), weights.get("group_size")
    strategy = strategy or ("tensor" if size is None else "group" if size > 0 else "channel")
    if kind == "float8" and weights["num_bits"] != 8:
        raise UnsupportedModel(f"{where}: num_bits is {weights['num_bits']}; supported for type float: 8")
    if strategy == "group" and (size is None or size < 1):
        raise UnsupportedModel(f"{where}: group_size is {size}, but strategy is group")
    rows, inputs = {"tensor": (0, 0), "channel": (1, 0), "group": (1, size or 0), "block": (0, 0)}[strategy]
    if strategy == "block":
        rows, inputs = _block(where, "block_structure", weights.get("block_structure"))
    return Scheme(
        kind,
        weights["num_bits"],
        rows,
        inputs,
        symmetric=weights.get("symmetric") is not False,
        ordered=weights.get("actorder") in (True, "group", "dynamic"),
        rounds_inputs=kind == "float8" and group.get("input_activations") is not None,
    )


def _block(where: str, key: str, value: Any) -> tuple[int, int]:
    if not isinstance(value, list) or len(value) != 2 or not all(type(n) is int and 0 < n <= MOST_BLOCK for n in value):
        raise UnsupportedModel(f"{where}: {key} must be two whole numbers, such as [128, 128]")
    return value[0], value[1]


def _check(where: str, found: Raw, keys: Mapping[str, Check], needed: tuple[str, ...] = ()) -> None:
    for key in needed:
        if key not in found:
            raise UnsupportedModel(f"{where}: {key} is missing")
    for key, value in found.items():
        if key not in keys:
            raise UnsupportedModel(f"{where}: {_shortened(key)} is not known")
        if not keys[key](value):
            raise UnsupportedModel(f"{where}: {key} is {_shortened(value)}, which is not supported")


def _shortened(value: Any) -> str:
    text = value if isinstance(value, str) and value.isprintable() else repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
