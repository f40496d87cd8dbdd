"""The processor time that the parts of an installation take: which of them keeps another from its turn.

By proc(5), so that the figures are the kernel's, of everything that a process has started too.
"""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")

Seconds = dict[str, float]
"""Processor seconds by the name of a part."""


class Processors:
    """The parts of an installation, and their processor time.

    pids: for each part, a function that returns its processes' ids at that moment.
    """

    def __init__(self, pids: Mapping[str, Callable[[], list[int]]]) -> None:
        self._pids = pids

    def seconds(self) -> Seconds:
        """Return the processor seconds that each part has taken so far, with what its processes have started."""
        started = _started()
        return {name: sum(_with_started(pid, started) for pid in pids()) for name, pids in self._pids.items()}


def seconds_between(before: Seconds, after: Seconds) -> Seconds:
    """Return the processor seconds that each part took between two moments."""
    return {name: after[name] - before[name] for name in after}


def busy_processors(taken: Seconds, seconds: float) -> str:
    """Return the number of processors that each part kept busy on average, in words.

    taken: the processor seconds of each part. seconds: the time in which the parts took them.
    """
    return ", ".join(f"{name} {value / seconds:.2f}" for name, value in taken.items())


def _with_started(pid: int, started: Mapping[int, list[int]]) -> float:
    """Return the processor seconds of a process, of those it has waited for, and of those it started that still run."""
    own = 0.0
    with contextlib.suppress(OSError):  # it has just ended
        own = sum(map(int, _fields(pid)[11:15])) / TICKS_PER_S
    return own + sum(_with_started(child, started) for child in started.get(pid, ()))


def _started() -> dict[int, list[int]]:
    """Return the ids of running child processes by the id of their parent."""
    found = defaultdict(list)
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            found[int(_fields(int(entry.name))[1])].append(int(entry.name))
    return found


def _fields(pid: int) -> list[str]:
    """Return the fields of a process's `stat` (proc(5)) from the third on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
