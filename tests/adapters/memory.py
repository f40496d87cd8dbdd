"""Measures the memory that this process takes, for tests that bound it."""

from __future__ import annotations

from pathlib import Path


def peak_bytes(reset: bool = False) -> int:
    """Return the largest resident size of this process since the last reset: see proc(5), clear_refs.

    reset: whether to make the present size the largest one first.
    """
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
