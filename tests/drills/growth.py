"""Growth over a long run: memory and descriptors of processes, rows of tables, files of a folder."""

from __future__ import annotations

import asyncio
import os
import statistics
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path

import asyncpg
import msgspec

MIB = 1 << 20


class Sample(msgspec.Struct, frozen=True):
    """The measured sizes of an installation at one moment."""

    at_s: float
    """The seconds since the run began."""
    rss_bytes: dict[str, int]
    descriptors: dict[str, int]
    rows: dict[str, int]
    """The number of rows of each table that has any."""
    num_files: int
    file_bytes: int


class Slope(msgspec.Struct, frozen=True):
    """The growth of a value over a run, and the scatter of the value about the line of that growth."""

    first: float
    """The first value after the first fifth of the run, which is left out."""
    last: float
    """The last value."""
    per_hour: float
    """The growth in an hour: the median of the slopes between all pairs of values."""
    noise: float
    """Three times the median distance of the values from the line."""
    is_flat: bool
    """True if the growth over the run is no more than the scatter, or than 2 % of the value."""


def take(at_s: float, pids: Mapping[str, int], dsn: str, folder: Path) -> Sample:
    """Measure the sizes of an installation. Processes that are about to start or have just ended are left out.

    at_s: the seconds since the beginning, which the sample names. pids: the processes to measure, by name.
    """
    rss, descriptors = {}, {}
    for name, pid in pids.items():
        try:
            rss[name] = rss_bytes(pid)
            descriptors[name] = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        except (OSError, IndexError):
            continue
    files = [path.stat().st_size for path in folder.rglob("*") if path.is_file() and "postgres" not in path.parts]
    return Sample(at_s, rss, descriptors, asyncio.run(_rows(dsn)), len(files), sum(files))


def slope(times_s: Sequence[float], values: Sequence[float]) -> Slope:
    """Return the growth of these values without the first fifth, while caches fill and code is loaded."""
    begin = len(values) // 5
    times_s, values = times_s[begin:], values[begin:]
    if len(values) < 2:
        return Slope(values[0] if values else 0, values[-1] if values else 0, 0.0, 0.0, True)
    pairs = combinations(zip(times_s, values, strict=True), 2)
    per_s = statistics.median(
        (late[1] - early[1]) / (late[0] - early[0]) for early, late in pairs if late[0] > early[0]
    )
    rest = [value - per_s * time_s for time_s, value in zip(times_s, values, strict=True)]
    middle = statistics.median(rest)
    noise = 3 * statistics.median(abs(each - middle) for each in rest)
    growth = per_s * (times_s[-1] - times_s[0])
    is_flat = growth <= max(noise, 0.02 * statistics.median(values))
    return Slope(values[0], values[-1], 3600 * per_s, noise, is_flat)


def rss_bytes(pid: int) -> int:
    """Return the memory of a process in bytes.

    Raises OSError: when the process has ended.
    """
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) << 10


def cpu_s(pid: int) -> float:
    """Return the processor time that a process has taken in seconds, by proc(5)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _rows(dsn: str) -> dict[str, int]:
    conn = await asyncpg.connect(dsn)
    try:
        found = await conn.fetch("SELECT relname, n_live_tup FROM pg_stat_user_tables WHERE n_live_tup > 0")
    finally:
        await conn.close()
    return {row["relname"]: row["n_live_tup"] for row in found}
