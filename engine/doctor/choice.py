"""The way of computing that an engine chooses here, with the reasons and what would make it faster.

Asks the functions that the engine itself asks. Knows nothing of models.
"""

from __future__ import annotations

import torch

from engine.config import EngineConfig
from engine.cpu.quantization import quantization
from engine.doctor.report import Choice, Gpu, Machine
from engine.hardware import num_threads, resolve_device, resolve_dtype
from kernels.cpu.library import installed

CROWDED = 0.5
"""Other processes that use more than this share of a processor slow the engine down."""

SMALL_MEMORY_BYTES = 2 << 30


def find_gpus() -> tuple[Gpu, ...]:
    """Return the GPUs that PyTorch sees."""
    found = []
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        properties = torch.cuda.get_device_properties(index)
        free, total = torch.cuda.mem_get_info(index)
        found.append(Gpu(properties.name, f"{properties.major}.{properties.minor}", total, free))
    return tuple(found)


def choose(config: EngineConfig, machine: Machine, gpus: tuple[Gpu, ...]) -> Choice:
    """Return what an engine with this configuration chooses.

    Raises SetupError: when it would not start here.
    """
    device = resolve_device(config.device)
    dtype = str(resolve_dtype(config.dtype, device)).removeprefix("torch.")
    library = installed()
    paths = library.paths if library is not None else ()
    quantized = quantization(config.quantization, device)
    products = f"int8 {paths[-1]}" if quantized == "int8" else "torch"
    threads = num_threads(config.num_threads)
    return Choice(
        device=device.type,
        dtype=dtype,
        products=products,
        native_paths=paths,
        num_threads=threads,
        reasons=tuple(_reasons(config, device, dtype, products, paths, gpus)),
        advice=tuple(_advice(config, device, dtype, products, paths, machine, threads)),
    )


def _reasons(
    config: EngineConfig, device: torch.device, dtype: str, products: str, paths: tuple[str, ...], gpus: tuple[Gpu, ...]
) -> list[str]:
    lines = []
    if config.device != "auto":
        lines.append(f"LORIKEET_DEVICE is {config.device}.")
    elif gpus:
        lines.append("PyTorch sees a GPU.")
    else:
        lines.append("PyTorch sees no GPU.")
    if config.dtype != "auto":
        lines.append(f"LORIKEET_DTYPE is {config.dtype}.")
    elif device.type == "cpu" and dtype == "bfloat16":
        lines.append("The processor multiplies bfloat16.")
    elif device.type == "cpu":
        lines.append("The processor does not multiply bfloat16, so weights are float32.")
    if config.quantization == "int8" and products == "torch":
        lines.append("LORIKEET_QUANTIZATION is int8, but the native kernels are not there, so PyTorch computes.")
    elif config.quantization == "int8":
        lines.append(f"LORIKEET_QUANTIZATION is int8, and {paths[-1]} is the fastest path of this processor.")
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
    if device.type == "cpu" and products == "torch" and dtype == "float32" and len(paths) > 1:
        lines.append(
            "LORIKEET_QUANTIZATION=int8 reads a quarter of the bytes; it changes outputs slightly (engine/README.md)."
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
