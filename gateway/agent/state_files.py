"""Two files of the data folder that show the state of an agent to the program that supervises it.

`agent.alive` is touched once a second while the agent's loop turns. `agent.ready` is there while every replica of the
host is ready.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from gateway.support.worker import Worker

ALIVE_NAME = "agent.alive"
READY_NAME = "agent.ready"
TOUCH_S = 1.0
"""Seconds between two touches."""


class StateFiles(Worker):
    """The two files of one agent, which are not there before `start`."""

    def __init__(self, data_dir: Path) -> None:
        super().__init__(self._touch_alive_file, TOUCH_S, name="agent's sign of life")
        self._alive = data_dir / ALIVE_NAME
        self._ready = data_dir / READY_NAME

    def start(self) -> None:
        """Begin to touch `agent.alive`."""
        self.set_ready(is_ready=False)  # whatever the former agent said
        super().start()

    async def _touch_alive_file(self) -> None:
        with contextlib.suppress(OSError):  # a full disk ends no engines
            self._alive.touch(mode=0o600)

    def set_ready(self, *, is_ready: bool) -> None:
        """Make or remove `agent.ready`, which says that every replica of the host is ready.

        Errors of the disk are ignored.
        """
        with contextlib.suppress(OSError):
            if is_ready:
                self._ready.touch(mode=0o600)
            else:
                self._ready.unlink(missing_ok=True)
