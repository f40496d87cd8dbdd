"""Reads the processors, memory and accelerators of this host, without PyTorch.

Knows nothing of replicas and pools.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

import msgspec

VISIBLE = "CUDA_VISIBLE_DEVICES"
_MEMORY_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_QUERY = ["--query-gpu=memory.total", "--format=csv,noheader,nounits"]
_QUERY_TIMEOUT_S = 20.0


class Hardware(msgspec.Struct, frozen=True):
    """The processors, the memory and the accelerators of one host."""

    name: str
    """The name of the host."""
    num_processors: int
    """Processors that this process may use."""
    memory_bytes: int
    """Bytes of memory that this process may use."""
    gpu_bytes: list[int]
    """The memory of each accelerator that may be used."""
    gpu_names: list[str]
    """The name of each accelerator as CUDA_VISIBLE_DEVICES takes it."""


def this_host(device: str, environ: Mapping[str, str] = os.environ) -> Hardware:
    """Return the hardware of this host.

    device: the setting LORIKEET_DEVICE; `cpu`: the host counts as one without accelerators. environ: the variables that
    may hide accelerators.
    """
    gpus = {} if device == "cpu" else _gpus(environ)
    return Hardware(
        name=socket.gethostname(),
        num_processors=len(os.sched_getaffinity(0)),
        memory_bytes=_memory_bytes(),
        gpu_bytes=list(gpus.values()),
        gpu_names=list(gpus),
    )


def has_bf16() -> bool:
    """Tell whether the processors multiply bfloat16, as the engine asks before it chooses a number format."""
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return any(flag in flags for flag in ("avx512_bf16", "amx_bf16", " bf16"))


def _memory_bytes() -> int:
    """Return the memory of the machine, or of the container where that has a bound of its own."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in _MEMORY_LIMITS:
        try:
            limit = path.read_text().strip()
        except OSError:
            continue
        if limit.isdecimal():
            total = min(total, int(limit))
    return total


def _gpus(environ: Mapping[str, str]) -> dict[str, int]:
    """Return the memory of each accelerator, by its name for CUDA."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    visible = environ.get(VISIBLE)
    names = None if visible is None else [name.strip() for name in visible.split(",") if name.strip()]
    found: dict[str, int] = {}
    try:
        for name in names if names is not None else [""]:
            which = [f"--id={name}"] if name else []
            command = [program, *_QUERY, *which]
            answer = subprocess.run(command, capture_output=True, text=True, timeout=_QUERY_TIMEOUT_S, check=True)
            for index, line in enumerate(answer.stdout.split()):
                found[name or str(index)] = int(line) << 20
    except (OSError, ValueError, subprocess.SubprocessError):
        return found
    return found
