"""The wish that a step pauses, from any thread to the one that computes it. Knows neither steps nor requests."""

from __future__ import annotations

import ctypes


class Pause:
    """A flag in memory that native code reads while it computes."""

    def __init__(self) -> None:
        self._flag = ctypes.c_int32()

    @property
    def address(self) -> int:
        """The address of the flag, an int32 that is not 0 while the pause is asked for."""
        return ctypes.addressof(self._flag)

    @property
    def is_asked(self) -> bool:
        """True from `ask` until `forget`."""
        return bool(self._flag.value)

    def ask(self) -> None:
        """Ask the step under way, or the next one that can pause, to pause."""
        self._flag.value = 1

    def forget(self) -> None:
        """Take back what was asked."""
        self._flag.value = 0
