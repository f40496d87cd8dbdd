"""A server of all hostile behaviours in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.demo import REPOSITORY


@contextmanager
def hostile_process() -> Iterator[str]:
    """Give the URL of a server in a process of its own, so that it takes no time of this one."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.faults.foreign.hostile_main"],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.communicate()
