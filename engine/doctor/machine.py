"""Reads the system's own numbers of processors, memory and load. Knows nothing of PyTorch."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from engine.doctor.report import Machine

FEATURES = (
    "avx2",
    "fma",
    "f16c",
    "avx_vnni",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "amx_bf16",
    "amx_int8",
    "asimd",
    "asimddp",
    "bf16",
    "i8mm",
    "sve",
)
WATCH_S = 1.0
_CPU_QUOTA = "sys/fs/cgroup/cpu.max"
_MEMORY_LIMIT = "sys/fs/cgroup/memory.max"


def read_machine(root: Path = Path("/"), watch_s: float = WATCH_S) -> Machine:
    """Return the facts in the files below root. A fact that no file has is 0, empty or None.

    watch_s: seconds for which the work of other processes is watched.
    """
    before = _busy_s(root)
    own_s = time.process_time()
    time.sleep(watch_s)
    others_s = _busy_s(root) - before - (time.process_time() - own_s)
    cpuinfo, meminfo = _fields(root / "proc/cpuinfo"), _fields(root / "proc/meminfo")
    flags = set(cpuinfo.get("flags", cpuinfo.get("Features", "")).split())
    return Machine(
        processor=cpuinfo.get("model name", cpuinfo.get("CPU part", "")),
        features=tuple(name for name in FEATURES if name in flags),
        num_processors=len(os.sched_getaffinity(0)),
        quota=_quota(_text(root / _CPU_QUOTA)),
        memory_bytes=_kib(meminfo.get("MemTotal", "")),
        available_bytes=_kib(meminfo.get("MemAvailable", "")),
        memory_limit_bytes=_limit(_text(root / _MEMORY_LIMIT)),
        load=_parse_load(_text(root / "proc/loadavg")),
        busy=max(0.0, others_s / watch_s) if watch_s else 0.0,
    )


def _fields(path: Path) -> dict[str, str]:
    """Return the first value of each name in a file of lines `name: value`."""
    found: dict[str, str] = {}
    for line in _text(path).splitlines():
        name, colon, value = line.partition(":")
        if colon:
            found.setdefault(name.strip(), value.strip())
    return found


def _busy_s(root: Path) -> float:
    """Return the seconds for which the processors of this process have been busy with any work since the start."""
    mine = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    rows = [line.split() for line in _text(root / "proc/stat").splitlines() if line.startswith("cpu")]
    return sum(_busy_ticks(row) for row in rows if row[0] in mine) / os.sysconf("SC_CLK_TCK")


def _busy_ticks(row: Sequence[str]) -> int:
    """Return the ticks of user, nice, system, irq, softirq and steal of a line of /proc/stat."""
    return sum(int(value) for value in (*row[1:4], *row[6:9]) if value.isdecimal())


def _quota(text: str) -> float | None:
    """Return the processors that `cpu.max`, "quota period" in microseconds or "max period", allows."""
    parts = text.split()
    if len(parts) != 2 or not all(part.isdecimal() for part in parts) or parts[1] == "0":
        return None
    return int(parts[0]) / int(parts[1])


def _limit(text: str) -> int | None:
    return int(text) if text.strip().isdecimal() else None


def _parse_load(text: str) -> float:
    try:
        return float(text.split()[0])
    except (IndexError, ValueError):
        return 0.0


def _kib(text: str) -> int:
    """Return the bytes of a text such as "16 kB"; 0 where it is none."""
    number = text.split()[0] if text else ""
    return int(number) * 1024 if number.isdecimal() else 0


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
