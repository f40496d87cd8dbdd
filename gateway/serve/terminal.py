"""The messages of `serve` to the person in front of it: one line per step with its seconds, and a banner at the end."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO


class Terminal:
    """The output of `serve`: lines on out (standard error by default), flushed so that pipes and logs see them."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = sys.stderr if out is None else out

    def report(self, line: str) -> None:
        """Write one line about progress or an event."""
        self._write(f"lorikeet: {line}\n")

    def show(self, text: str) -> None:
        """Write a block of text unchanged."""
        self._write(f"{text}\n")

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Write a line when a step begins and, unless it fails, a line with its seconds when it ends."""
        self.report(f"{name} ...")
        started = time.monotonic()
        yield
        self.report(f"{name}: done in {time.monotonic() - started:.1f} s")

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # the terminal is gone; the processes still have to be stopped
            self._out.write(text)
            self._out.flush()
