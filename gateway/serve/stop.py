"""Requests to stop: Ctrl-C, SIGTERM and SIGHUP, counted. The first asks for a drain, a second one for haste."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopRequested(KeyboardInterrupt):
    """The request to stop, raised inside `StopSignals.interrupts()`.

    It is a KeyboardInterrupt, because asyncio lets only this and SystemExit pass.
    """


class StopSignals:
    """The count of stop signals received while entered; used from the main thread, one instance at a time."""

    def __init__(self) -> None:
        self._count = 0
        self._interrupts = False
        self._previous: dict[signal.Signals, Any] = {}

    @property
    def requested(self) -> bool:
        """True once a stop signal has come."""
        return self._count > 0

    @property
    def forced(self) -> bool:
        """True once a second stop signal has come."""
        return self._count > 1

    @contextmanager
    def interrupts(self) -> Iterator[None]:
        """Give a context in which a stop signal raises StopRequested at once, for steps that may end anywhere."""
        if self.requested:
            raise StopRequested
        self._interrupts = True
        try:
            yield
        finally:
            self._interrupts = False

    def __enter__(self) -> Self:
        for signum in STOP_SIGNALS:
            self._previous[signum] = signal.signal(signum, self._take_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)

    def _take_signal(self, signum: int, frame: FrameType | None) -> None:
        self._count += 1
        if self._interrupts:
            self._interrupts = False  # the clean-up that follows is not interrupted by a second signal
            raise StopRequested
