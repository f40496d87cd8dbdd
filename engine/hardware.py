"""The hardware of this machine: devices, number formats, processors, memory. Knows nothing of models."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from pathlib import Path

import torch


class SetupError(ValueError):
    """The error for an engine that can't start as configured; the message says what to change."""


def use_huge_pages() -> None:
    """Make PyTorch ask for huge pages, where the system gives them on request: tensors are read a tenth faster.

    Sets the environment variable THP_MEM_ALLOC_ENABLE unless it is set. PyTorch reads it at its first allocation, so a
    program calls this function before it makes a tensor.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")


def num_threads(requested: int) -> int:
    """Return the number of threads. 0: as many as OMP_NUM_THREADS says, or every processor this process may use.

    More threads than processors only get in each other's way.

    requested: the number that the settings ask for.

    Raises SetupError: when more are asked for than there are processors to use.
    """
    available = len(os.sched_getaffinity(0))
    if requested > available:
        raise SetupError(f"LORIKEET_NUM_THREADS is {requested}, but only {available} processors can be used")
    usual = os.environ.get("OMP_NUM_THREADS", "")
    return requested or (min(int(usual), available) if usual.isdecimal() and int(usual) else available)


def resolve_device(name: str) -> torch.device:
    """Return the device that a setting names.

    Raises SetupError: when the setting names a GPU and there is none.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise SetupError("LORIKEET_DEVICE is cuda, but PyTorch sees no CUDA device; set it to cpu or auto")
    return torch.device(name)


FLOAT8_CAPABILITY = (8, 9)
"""The compute capability from which on NVIDIA's GPUs compute in FP8."""


def check_kv_dtype(requested: str, device: torch.device) -> None:
    """Check that a device has the number format that is asked for its KV cache.

    Raises SetupError: when it has not.
    """
    if requested == "fp8" and device.type != "cuda":
        raise SetupError("LORIKEET_KV_DTYPE is fp8, which is for a GPU; set it to auto")
    if requested == "fp8" and torch.cuda.get_device_capability(device) < FLOAT8_CAPABILITY:
        raise SetupError("LORIKEET_KV_DTYPE is fp8, which this GPU does not compute in; set it to auto")


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return the dtype of a name.

    auto: bfloat16 where the hardware multiplies it, else float32 on a CPU and float16 on a GPU.
    """
    if name != "auto":
        return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[name]
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    return torch.bfloat16 if _cpu_multiplies_bf16() else torch.float32


def batched_tokens(requested: int, device: torch.device) -> int:
    """Return the tokens of one step; 0: on a GPU as many as hide the launches of a step with chunks of prompts.

    requested: the number that the settings ask for, if above 0.
    """
    return requested or (2048 if device.type == "cuda" else 512)


def free_host_bytes() -> int | None:
    """Return the bytes of memory that can still be taken; None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def return_memory() -> None:
    """Return memory to Linux that loading took and nothing needs now: freed memory, and pages of code.

    PyTorch's libraries run tens of megabytes of code while they are loaded that no step runs again. Code that steps do
    run comes back from the files, page by page.
    """
    with contextlib.suppress(AttributeError, OSError, ValueError):
        system = ctypes.CDLL(None)
        system.malloc_trim(0)
        for line in Path("/proc/self/maps").read_text().splitlines():
            addresses, permissions, *_, name = line.split(maxsplit=5)
            if permissions == "r-xp" and name.startswith("/"):  # never written to, as relocated data is
                first, end = (int(address, 16) for address in addresses.split("-"))
                system.madvise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), mmap.MADV_DONTNEED)


def _cpu_multiplies_bf16() -> bool:
    """Tell whether the CPU multiplies bfloat16: by AVX512-BF16, AMX or ARM's BF16.

    Without them bfloat16 is emulated and slower than float32.
    """
    return _cpu_has("avx512_bf16", "amx_bf16", "bf16")


def _cpu_has(*features: str) -> bool:
    """Tell whether the CPU has any of the features, as Linux names them in /proc/cpuinfo."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return False
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features"))), [])
    return not set(features).isdisjoint(flags)
