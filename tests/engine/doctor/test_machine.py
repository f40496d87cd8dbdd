"""The doctor reads the system's files as they stand, and leaves out what the system does not report."""

from __future__ import annotations

import os
from pathlib import Path

from engine.doctor.machine import read_machine

FILES = {
    "proc/cpuinfo": "model name : A Processor\nflags : fpu avx2 avx512_bf16 sse\n\nmodel name : Another\nflags : fpu\n",
    "proc/meminfo": "MemTotal:       16000 kB\nMemFree: 1 kB\nMemAvailable:    9000 kB\n",
    "proc/loadavg": "1.50 0.70 0.30 2/100 4242\n",
    "proc/stat": "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 100 0 0 50 0 0 0 0 0 0\n",
    "sys/fs/cgroup/cpu.max": "150000 100000\n",
    "sys/fs/cgroup/memory.max": "8000000\n",
}


def _root(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_what_the_systems_files_say_is_reported(tmp_path: Path) -> None:
    machine = read_machine(_root(tmp_path, FILES), watch_s=0)
    assert (machine.processor, machine.features) == ("A Processor", ("avx2", "avx512_bf16"))
    assert (machine.memory_bytes, machine.available_bytes) == (16_000 * 1024, 9_000 * 1024)
    assert (machine.quota, machine.memory_limit_bytes, machine.load) == (1.5, 8_000_000, 1.5)
    assert machine.num_processors == len(os.sched_getaffinity(0))


def test_a_system_without_these_files_is_unknown_rather_than_an_error(tmp_path: Path) -> None:
    machine = read_machine(tmp_path, watch_s=0)
    assert (machine.processor, machine.features, machine.memory_bytes, machine.load) == ("", (), 0, 0.0)
    assert (machine.quota, machine.memory_limit_bytes) == (None, None)


def test_a_control_group_without_a_bound_is_reported_as_none(tmp_path: Path) -> None:
    files = FILES | {"sys/fs/cgroup/cpu.max": "max 100000\n", "sys/fs/cgroup/memory.max": "max\n"}
    machine = read_machine(_root(tmp_path, files), watch_s=0)
    assert (machine.quota, machine.memory_limit_bytes) == (None, None)
