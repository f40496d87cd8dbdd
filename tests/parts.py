"""Long tests and programs that run part by part, then a table: what holds, how long that took, and what was counted.

One part runs at a time, since each of them may fill a machine of two cores. The table has each part's figures, its
duration, and the load of the machine before it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from tests.demo import REPOSITORY
from tests.figures import FILE_VARIABLE


class Part(msgspec.Struct, frozen=True):
    """A command that is one part of a long run, and fails where a promise does not hold."""

    name: str
    command: tuple[str, ...]
    needs: str = ""
    """The module that installs the environment of the part; "" for none."""


def full(*tests: str) -> tuple[str, ...]:
    """Return the command that runs tests at full size."""
    return ("-m", "pytest", "--full", "-s", "-q", *tests)


def parser_of(parts: Sequence[Part], prog: str, description: str | None) -> argparse.ArgumentParser:
    """Return the parser of a program whose arguments are names of parts."""
    parser = argparse.ArgumentParser(prog=prog, description=description)
    names = [part.name for part in parts]
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(names)}")
    return parser


def run_parts(
    parts: Sequence[Part], chosen: Sequence[str], table: Path, prepare: Callable[[Part], None] = lambda part: None
) -> int:
    """Run the chosen parts, or all. Return 0 if all hold, 1 if some do not, 2 if a chosen one is unknown.

    table: the file that has the table in the end.
    """
    names = {part.name for part in parts}
    if unknown := sorted(set(chosen) - names):
        print(f"no part is called {', '.join(unknown)}; these are: {', '.join(sorted(names))}", file=sys.stderr)
        return 2
    lines: list[str] = []
    for part in parts:
        if chosen and part.name not in chosen:
            continue
        prepare(part)
        lines += _run(part)
    table.write_text("\n".join([*lines, ""]))
    print("", *lines, sep="\n")
    return 1 if any(" FAILED " in line for line in lines) else 0


def _run(part: Part) -> list[str]:
    """Run a part; return the lines of the table for it."""
    print(f"\n{part.name}: {' '.join(part.command)}", flush=True)
    load, began_s = os.getloadavg()[0], time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        figures = Path(folder) / "figures"
        environ = os.environ | {FILE_VARIABLE: str(figures)}
        is_test = "pytest" in part.command
        with subprocess.Popen(
            [sys.executable, *part.command],
            cwd=REPOSITORY,
            env=environ,
            stdout=None if is_test else subprocess.PIPE,
            text=True,
        ) as running:
            found = [] if running.stdout is None else [_shown(line) for line in running.stdout]
        if figures.exists():
            found += figures.read_text().splitlines()
    seconds = time.monotonic() - began_s
    outcome = "holds" if running.returncode == 0 else f"FAILED ({running.returncode})"
    return [
        f"{part.name:<10} {outcome:<12} {seconds:6.0f} s   load {load:4.1f} before",
        *(f"    {each}" for each in found),
    ]


def _shown(line: str) -> str:
    """Print a line of a program's output; return it without its line end."""
    print(line, end="", flush=True)
    return line.rstrip()
