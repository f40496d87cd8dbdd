"""The progress of a transfer, on standard error: a bar that moves on a terminal, else a line now and then."""

from __future__ import annotations

import sys
import time
from typing import TextIO

BAR_CHARACTERS = 30
REDRAW_S = 0.1
LINE_S = 5.0


class Progress:
    """A line of progress.

    what: the word before the numbers. unit: the word after them; "" for bytes, which are shown in MiB. quiet: nothing
    is shown. `done` ends the bar's line. stream: None: standard error.
    """

    def __init__(self, what: str, *, quiet: bool, stream: TextIO | None = None, unit: str = "") -> None:
        self._what = what
        self._quiet = quiet
        self._unit = unit
        self._stream = stream or sys.stderr
        self._is_terminal = self._stream.isatty()
        self._shown_s = float("-inf") if self._is_terminal else time.monotonic()
        self._is_open = False

    def show(self, amount: int, total: int | None) -> None:
        """Show the amount so far. total: the amount in all; None where it is not known."""
        now_s = time.monotonic()
        if self._quiet or now_s - self._shown_s < (REDRAW_S if self._is_terminal else LINE_S):
            return
        self._shown_s = now_s
        numbers = self._number(amount) if total is None else f"{self._number(amount)} of {self._number(total)}"
        numbers += f" {self._unit}" if self._unit else ""
        if not self._is_terminal:
            self._stream.write(f"{self._what}: {numbers}\n")
        else:
            self._stream.write(f"\r{self._what} {_bar(amount, total)} {numbers}\x1b[K")
            self._is_open = True
        self._stream.flush()

    def _number(self, amount: int) -> str:
        return f"{amount:,}" if self._unit else mib(amount)

    def note(self, text: str) -> None:
        """Write a text on a line of its own."""
        if not self._quiet:
            self.done()
            self._stream.write(f"{text}\n")
            self._stream.flush()

    def done(self) -> None:
        """Take the bar off the terminal."""
        if self._is_open:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._is_open = False


def mib(num_bytes: int) -> str:
    """Return a size as text in MiB."""
    return f"{num_bytes / (1 << 20):.1f} MiB"


def _bar(num_bytes: int, total_bytes: int | None) -> str:
    if not total_bytes:
        return f"[{' ' * BAR_CHARACTERS}]"
    share = min(1.0, num_bytes / total_bytes)
    full = int(share * BAR_CHARACTERS)
    return f"[{'#' * full}{' ' * (BAR_CHARACTERS - full)}] {int(share * 100):3d}%"
