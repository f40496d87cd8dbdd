"""The way of computing that an engine chooses here, with the reasons and what would make it faster.

Asks the functions that the engine itself asks. Reads no more of a model than the heads of its files.
"""

from __future__ import annotations

from pathlib import Path

import torch

from engine.config import EngineConfig, ModelConfig, load_model_config
from engine.config.gguf_file import gguf_of
from engine.cpu.quality import Quality, stored_quality
from engine.cpu.quantization import check_unquantized, choose_format, use_native_path, why_unquantized
from engine.doctor.report import Choice, Gpu, Machine
from engine.hardware import check_kv_dtype, num_threads, resolve_device, resolve_dtype
from engine.prepare.sources import keeps_blocks
from kernels.cpu.library import installed

CROWDED = 0.5
"""The share of a processor by other processes above which they slow the engine down."""

SMALL_MEMORY_BYTES = 2 << 30

UNMEASURED = Quality(model_digest="", format="", num_tokens=0, divergence_nats=0.0, perplexity_ratio=1.0)
"""The quality that is assumed of a model that no engine has started with yet."""


def find_gpus() -> tuple[Gpu, ...]:
    """Return the GPUs that PyTorch sees."""
    found = []
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        properties = torch.cuda.get_device_properties(index)
        free, total = torch.cuda.mem_get_info(index)
        found.append(Gpu(properties.name, f"{properties.major}.{properties.minor}", total, free))
    return tuple(found)


def choose(config: EngineConfig, machine: Machine, gpus: tuple[Gpu, ...], source: str = "") -> Choice:
    """Return the way of computing that an engine with this configuration chooses.

    source: the source of the model, which counts until the model's folder is there.

    Raises SetupError or UnsupportedModel: when such an engine would not start on this machine.
    """
    device = resolve_device(config.device)
    check_kv_dtype(config.kv_dtype, device)
    computed = resolve_dtype(config.dtype, device)
    dtype = str(computed).removeprefix("torch.")
    use_native_path(config.native_path)
    library = installed()
    paths = library.paths if library is not None else ()
    stored = stored_quality(config.model_dir, "int8")
    model = _model_of(config)
    through = "" if model is None else _why_as_stored(config, model, device)
    quantized, why = (
        ("none", through)
        if through
        else choose_format(
            config.quantization,
            device,
            computed,
            lambda library: stored or UNMEASURED,
            has_blocks=_has_blocks(config.model_dir, source),
            quantized=None if model is None else model.quantized,
        )
    )
    if quantized == "int8" and config.quantization == "auto" and stored is None:
        why = f"Matrices are 8-bit integers, by {paths[-1]}, if the first start finds the model near enough to float32."
    if (
        quantized == "int4"
        and device.type == "cpu"
        and (measured := stored_quality(config.model_dir, "int4")) is not None
    ):
        why += f" This model is {measured}."
    by = paths[-1] if device.type == "cpu" and paths else "triton"
    products = "torch" if quantized == "none" else f"{quantized} {by}"
    threads = num_threads(config.num_threads)
    return Choice(
        device=device.type,
        dtype=dtype,
        products=products,
        native_paths=paths,
        num_threads=threads,
        reasons=(*_reasons(config, device, dtype, gpus), *_of_files(model), why),
        advice=tuple(_advice(config, device, dtype, "" if through else products, paths, machine, threads)),
    )


def _model_of(config: EngineConfig) -> ModelConfig | None:
    """Return the model's configuration; None where the model is not there yet.

    Raises UnsupportedModel: when the engine cannot compute the model.
    """
    if not (Path(config.model_dir) / "config.json").exists():
        return None
    return load_model_config(config.model_dir, config.decoder)


def _why_as_stored(config: EngineConfig, model: ModelConfig, device: torch.device) -> str:
    """Return why the model is computed in the numbers of its files; "" where the model is computed in other numbers.

    Raises SetupError: when another format is asked for.
    """
    why = why_unquantized(model, device)
    if not why:
        return ""
    check_unquantized(config.quantization, why)
    if model.decoder != "transformers":
        return f"{why[0].upper()}{why[1:]}, in the numbers of its files."
    if config.decoder == "transformers":
        return "LORIKEET_DECODER is transformers, which is slower than the engine's own code."
    return f"The engine has no code of its own for {model.family}: transformers computes it, which is slower."


def _of_files(model: ModelConfig | None) -> list[str]:
    """Return a sentence about the format of the model's files if they hold matrices in few bits; else an empty list."""
    if model is None or model.quantized is None:
        return []
    return [f"The model's files hold matrices in {model.quantized}."]


def _has_blocks(model_dir: str, source: str) -> bool:
    """Tell whether a model has the blocks of a GGUF file, or will have once its source is prepared."""
    if Path(model_dir).is_dir() or source in ("", "demo", "demo-random"):
        return gguf_of(model_dir) is not None
    path = Path(source)
    files = sorted(path.glob("*.gguf")) if path.is_dir() else [path]
    return len(files) == 1 and files[0].suffix == ".gguf" and keeps_blocks(files[0])


def _reasons(config: EngineConfig, device: torch.device, dtype: str, gpus: tuple[Gpu, ...]) -> list[str]:
    lines = []
    if config.device != "auto":
        lines.append(f"LORIKEET_DEVICE is {config.device}.")
    elif gpus:
        lines.append("PyTorch sees a GPU.")
    else:
        lines.append("PyTorch sees no GPU.")
    if config.native_path != "auto" and device.type == "cpu":
        lines.append(f"LORIKEET_NATIVE_PATH is {config.native_path}.")
    if config.dtype != "auto":
        lines.append(f"LORIKEET_DTYPE is {config.dtype}.")
    elif device.type == "cpu" and dtype == "bfloat16":
        lines.append("The processor multiplies bfloat16.")
    elif device.type == "cpu":
        lines.append("The processor does not multiply bfloat16, so weights are float32.")
    if config.kv_dtype != "auto":
        lines.append(f"LORIKEET_KV_DTYPE is {config.kv_dtype}.")
    return lines


def _advice(
    config: EngineConfig,
    device: torch.device,
    dtype: str,
    products: str,
    paths: tuple[str, ...],
    machine: Machine,
    threads: int,
) -> list[str]:
    lines = []
    if device.type == "cpu" and products == "torch" and len(paths) > 1:
        slower = "" if dtype == "float32" else " and makes long prompts slower"
        lines.append(
            f"LORIKEET_QUANTIZATION=int8 makes tokens of few streams faster{slower}; it changes outputs slightly "
            "(engine/README.md)."
        )
    if device.type == "cpu" and not paths:
        lines.append("The native kernels are missing: reinstall the package to have them built.")
    if dtype == "bfloat16" and device.type == "cpu" and not {"avx512_bf16", "amx_bf16", "bf16"} & set(machine.features):
        lines.append("The processor emulates bfloat16: LORIKEET_DTYPE=auto is faster.")
    if device.type == "cpu" and machine.busy > CROWDED:
        lines.append(
            f"Other processes use {machine.busy:.1f} of {machine.num_processors} processors: the engine computes with "
            "fewer threads meanwhile."
        )
    if machine.quota is not None and machine.quota < threads:
        lines.append(
            f"The control group allows {machine.quota:g} processors, but {threads} threads would compute: set "
            f"LORIKEET_NUM_THREADS={max(1, int(machine.quota))}."
        )
    if _usable_bytes(machine) and _usable_bytes(machine) < SMALL_MEMORY_BYTES:
        lines.append("Less than 2 GiB of memory can be used: set LORIKEET_KV_CACHE_BYTES to a small value.")
    return lines


def _usable_bytes(machine: Machine) -> int:
    return min(machine.available_bytes, machine.memory_limit_bytes or machine.available_bytes)
