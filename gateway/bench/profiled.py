"""`python -m gateway.bench.profiled FILE VERB...`: the command line, under a sampling profiler.

Samples are of processor time (setitimer(2), ITIMER_PROF): what waits is not seen, and what runs is slowed by a percent
or so. SIGUSR1 forgets the samples so far. Written to FILE when the process ends: the number of samples by room, which
is the innermost part of the gateway or library that ran, and by function.
"""

from __future__ import annotations

import json
import signal
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from types import CodeType, FrameType

from gateway import cli

INTERVAL_S = 0.001
LIBRARIES = (
    "uvicorn",
    "litestar",
    "asyncpg",
    "prometheus_client",
    "structlog",
    "zmq",
    "transformers",
    "jinja2",
    "msgspec",
)
NO_ROOMS = ("gateway/assembly/app.py", "gateway/cli", "gateway/bench")
"""Modules whose frames count for no room: they call the event loop."""

ELSEWHERE = "event loop and others"


class Samples:
    """Counts of the functions that ran when a sample was taken, by room and by function."""

    def __init__(self) -> None:
        self._rooms: Counter[str] = Counter()
        self._functions: Counter[str] = Counter()

    def take(self, signum: int, frame: FrameType | None) -> None:
        """Count a sample, as a signal handler."""
        self._functions[_function(frame.f_code) if frame is not None else ELSEWHERE] += 1
        room = None
        while frame is not None and room is None:
            room, frame = _room(frame.f_code), frame.f_back
        self._rooms[room or ELSEWHERE] += 1

    def forget(self, *_: object) -> None:
        """Drop all samples so far; a signal handler, whose arguments do not matter."""
        self._rooms.clear()
        self._functions.clear()

    def write(self, path: Path) -> None:
        """Write the counts as JSON, the most frequent rooms and functions first."""
        found = {"rooms": self._rooms.most_common(), "functions": self._functions.most_common()}
        path.write_text(json.dumps(found))


@cache
def _function(code: CodeType) -> str:
    return f"{'/'.join(Path(code.co_filename).parts[-2:])}:{code.co_name}"


@cache
def _room(code: CodeType) -> str | None:
    """Return the room of a function: gateway/openai for a file below that folder, or the name of a library."""
    parts = Path(code.co_filename).parts
    if "site-packages" in parts:
        package = parts[parts.index("site-packages") + 1]
        return package if package in LIBRARIES else None
    for package in ("gateway", "engine"):
        if package in parts[:-1]:
            start = len(parts) - 1 - parts[::-1].index(package)
            room = "/".join(parts[start : start + 2])
            return None if room in NO_ROOMS else room
    return None


def main() -> int:
    """Run the command line that follows the file's name under the profiler; return its exit status."""
    path, sys.argv[1:] = Path(sys.argv[1]), sys.argv[2:]
    samples = Samples()
    signal.signal(signal.SIGUSR1, samples.forget)
    signal.signal(signal.SIGPROF, samples.take)
    signal.setitimer(signal.ITIMER_PROF, INTERVAL_S, INTERVAL_S)
    try:
        return cli.main()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        samples.write(path)


if __name__ == "__main__":
    sys.exit(main())
